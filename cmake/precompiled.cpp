// A target needs a file to own a precompiled header.
