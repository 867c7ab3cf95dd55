"""`leaner study`: what papers state, put to the test; every study a file, or some, of its own."""
