"""The sentences of cards and index, a file for each part of them. Arguments are records; nothing here reads a file."""
