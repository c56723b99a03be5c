"""What the HTTP transport and the routes share: checks of origins and hosts, content negotiation, problem documents.

It lies below both: ``world/`` serves connections without the routes of ``rest/``.
"""
