"""What the configuration needs of local folders."""

TOKENIZER_FILES = ("tokenizer.json",)
