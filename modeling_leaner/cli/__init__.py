"""The `leaner` command, the top of the stack: options, help, errors. Nothing imports it."""
