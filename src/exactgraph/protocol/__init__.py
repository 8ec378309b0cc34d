"""What is asked of a model and what it answered: prompts, traces, comparison, timing."""
