"""Many runs: grid files, rows, sweeps, statistics, simple guesses, and the evidence of a grid."""
