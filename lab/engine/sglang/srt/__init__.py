"""Where the real engine keeps its server; here only its command line."""
