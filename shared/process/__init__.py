"""What both programs' processes need: command line, files, errors of connections."""
