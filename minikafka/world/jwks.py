"""The keys that verify tokens, read from a file or by HTTPS: at the start, from time to time, and for unknown keys.

Rules for this file: the address is the operator's setting and never a token's. Redirects are not followed. Answers are
bounded in time and size. Unknown keys make the broker read again at most once in UNKNOWN_S. The CAs that the server is
verified with are read each time, so that they can be replaced.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

import aiohttp

from minikafka.config import MIB, BrokerConfig
from minikafka.errors import InvalidConfig, in_words
from minikafka.ports import Events
from minikafka.security.oauth import SETTING, Tokens, parse_jwks
from minikafka.tasks import until_ended
from minikafka.world.tls import load_trust

SIZE_MAX = 1 * MIB
TIMEOUT_S = 5.0
UNKNOWN_S = 60.0
UNKNOWN_IN_FILE_S = 1.0
TRUST = "mk.oauth.jwks.truststore.location"


class JwksReader:
    """Keeps the keys of ``tokens`` up to date, from :meth:`start` to :meth:`close`."""

    def __init__(self, config: BrokerConfig, tokens: Tokens, events: Events) -> None:
        self._url = config.sasl_oauthbearer_jwks_endpoint_url
        self._trust = config.oauth_jwks_truststore_location
        self._refresh_s = config.sasl_oauthbearer_jwks_endpoint_refresh_ms / 1000
        self._backoff_s = config.sasl_oauthbearer_jwks_endpoint_retry_backoff_ms / 1000
        self._backoff_max_s = config.sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms / 1000
        self._tokens = tokens
        self._events = events
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_file = urlsplit(self._url).scheme == "file"
        self._read: Callable[[], Awaitable[bytes]] = self._read_file if self._is_file else self._fetch
        tokens.on_unknown_key = self._wanted.set

    async def start(self) -> None:
        """Begin. A file must be there and have keys: raises InvalidConfig. A server need not answer yet, but the file
        with its CAs must be there.
        """
        if self._is_file:
            self._tokens.use(parse_jwks(await self._read()))
        else:
            await asyncio.to_thread(_context_of, self._trust)
        self._task = asyncio.get_running_loop().create_task(self._run(), name="jwks")

    async def close(self) -> None:
        """End the task."""
        if self._task is not None:
            self._task.cancel()
            await until_ended((self._task,))

    async def _run(self) -> None:
        failures = 0
        known: bytes | None = None
        while True:
            try:
                text = await self._read()
                if text != known:
                    keys = parse_jwks(text)
                    known = text
                    self._tokens.use(keys)
                    self._events("jwks_loaded", keys=len(keys))
                failures = 0
            except InvalidConfig as error:
                failures += 1
                self._events("jwks_failed", why=error.message)
            self._wanted.clear()
            if failures:
                await asyncio.sleep(min(self._backoff_max_s, self._backoff_s * 2.0 ** min(failures - 1, 20)))
                continue
            least_s = min(self._refresh_s, UNKNOWN_IN_FILE_S if self._is_file else UNKNOWN_S)
            await asyncio.sleep(least_s)
            try:
                async with asyncio.timeout(max(0.0, self._refresh_s - least_s)):
                    await self._wanted.wait()
            except TimeoutError:
                continue

    async def _read_file(self) -> bytes:
        path = Path(unquote(urlsplit(self._url).path))
        try:
            return await asyncio.to_thread(_beginning_of, path)
        except OSError as error:
            raise InvalidConfig(f"{SETTING}: {path} cannot be read: {in_words(error)}", setting=SETTING) from None

    async def _fetch(self) -> bytes:
        context = await asyncio.to_thread(_context_of, self._trust)
        try:
            timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.get(self._url, allow_redirects=False, ssl=context) as answer,
            ):
                if answer.status != 200:
                    raise InvalidConfig(f"{SETTING}: the server answered {answer.status}", setting=SETTING)
                return _bounded(await _whole(answer))
        except aiohttp.ClientConnectorCertificateError as error:
            trusted = f"{TRUST}={self._trust}" if self._trust else f"the CAs of the system; {TRUST} names others"
            why = getattr(error.certificate_error, "verify_message", "") or type(error.certificate_error).__name__
            raise InvalidConfig(
                f"{SETTING}: the certificate of {urlsplit(self._url).netloc} is refused: {why}; it is verified with "
                f"{trusted}",
                setting=SETTING,
            ) from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise InvalidConfig(f"{SETTING}: {type(error).__name__}: no keys came", setting=SETTING) from None


def _context_of(trust: str) -> ssl.SSLContext:
    """TLS of the server, which is verified with the CAs in a file (empty: the system's). Raises InvalidConfig."""
    if not trust:
        return ssl.create_default_context()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_trust(context, trust, name=TRUST)
    return context


async def _whole(answer: aiohttp.ClientResponse) -> bytes:
    read = b""
    async for chunk in answer.content.iter_chunked(64 * 1024):
        read += chunk
        if len(read) > SIZE_MAX:
            break
    return read


def _bounded(text: bytes) -> bytes:
    if len(text) > SIZE_MAX:
        raise InvalidConfig(f"{SETTING}: more than {SIZE_MAX} bytes came", setting=SETTING)
    return text


def _beginning_of(path: Path) -> bytes:
    with path.open("rb") as file:
        return _bounded(file.read(SIZE_MAX + 1))
