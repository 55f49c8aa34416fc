"""Many runs: which are due, which process has which, and what came out."""
