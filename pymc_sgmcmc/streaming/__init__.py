"""Data that stays on disk: sources of rows, shuffled epochs, and a thread that reads ahead."""
