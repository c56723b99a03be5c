"""The SCRAM credentials that a broker checks logins with: those of the metadata that it has applied."""

from __future__ import annotations

from collections.abc import Callable

from minikafka.quorum.image import MetadataImage
from minikafka.security.scram import SECRET_SIZE, ScramCredential, ScramMechanism, made_up_credential


class ImageCredentials:
    """See the head of this file; :class:`minikafka.security.scram.Credentials`."""

    def __init__(self, image: Callable[[], MetadataImage], entropy: Callable[[int], bytes]) -> None:
        self._image = image
        self._shapes: tuple[object, dict[ScramMechanism, set[tuple[int, int]]]] = (None, {})
        """Credentials, and iterations and salt sizes that occur in them: a login must not walk over all users."""
        self._own_secret = entropy(SECRET_SIZE)
        """In place of the cluster's secret while there is no user in the cluster."""

    def find(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        """See :class:`minikafka.security.scram.Credentials`."""
        return self._image().scram.get((mechanism, user))

    def made_up(self, mechanism: ScramMechanism, user: str) -> ScramCredential:
        """See :class:`minikafka.security.scram.Credentials`."""
        image = self._image()
        known, shapes = self._shapes
        if known is not image.scram:
            shapes = {}
            for (used, _), each in image.scram.items():
                shapes.setdefault(used, set()).add((each.iterations, len(each.salt)))
            self._shapes = image.scram, shapes
        secret = image.cluster_secret or self._own_secret
        return made_up_credential(mechanism, user, secret, shapes.get(mechanism, ()))
