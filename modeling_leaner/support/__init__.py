"""What every room may use: files written whole or not at all, suggestions, quiet libraries, interrupts."""
