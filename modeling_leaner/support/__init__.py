"""What every room may use: whole files, texts within bounds, suggestions, quiet libraries, terminal, interrupts."""
