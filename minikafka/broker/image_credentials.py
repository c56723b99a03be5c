"""The SCRAM credentials that a broker checks logins with: those of the metadata that it has applied."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from minikafka.quorum.image import MetadataImage
from minikafka.security.scram import SECRET_SIZE, ScramCredential, ScramMechanism, made_up_credential, made_up_mechanism


class ImageCredentials:
    """See the head of this file; :class:`minikafka.security.scram.Credentials`."""

    def __init__(self, image: Callable[[], MetadataImage], entropy: Callable[[int], bytes]) -> None:
        self._image = image
        self._shapes: tuple[object, dict[ScramMechanism, set[tuple[int, int]]]] = (None, {})
        """Credentials, and iterations and salt sizes that occur in them: a login must not walk over all users."""
        self._strongest: tuple[object, dict[tuple[ScramMechanism, ...], set[ScramMechanism]]] = (None, {})
        """Credentials, and by enabled mechanisms those with which passwords of users are checked."""
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

    def unknown_users_mechanism(self, mechanisms: Sequence[ScramMechanism], user: str) -> ScramMechanism:
        """See :class:`minikafka.security.http_login.PasswordUsers`."""
        image = self._image()
        known, by_enabled = self._strongest
        if known is not image.scram:
            by_enabled = {}
            self._strongest = image.scram, by_enabled
        enabled = tuple(mechanisms)
        strongest = by_enabled.get(enabled)
        if strongest is None:
            users = dict.fromkeys(name for _, name in image.scram)
            first = (next((each for each in enabled if (each, name) in image.scram), None) for name in users)
            strongest = by_enabled[enabled] = {each for each in first if each is not None} or {enabled[0]}
        return made_up_mechanism(user, image.cluster_secret or self._own_secret, strongest)
