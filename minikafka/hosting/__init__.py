"""Hosting: a broker in this process, with its ports and routes; broker processes; the files of a local cluster."""
