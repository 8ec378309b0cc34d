"""Tasks of the pretended package."""

GENERATE, TRANSCRIBE = "generate", "transcribe"
