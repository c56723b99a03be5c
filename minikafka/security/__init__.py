"""Floor 4, below ``quorum/``: which principal may do what.

``authorizer.py`` decides about one operation on one resource from the access control lists of a metadata image, with
the semantics of Kafka's StandardAuthorizer. ``acl_filters.py`` finds entries and checks new ones.
"""
