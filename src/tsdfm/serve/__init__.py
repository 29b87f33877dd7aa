"""An HTTP server: requests join the running batch at its next network pass, and leave it when their text is done."""
