// A target needs one file to own a precompiled header.
