"""JSON on ``/rpc/{Api}``: the protocol itself for curl (D7).

The request is the head as a JSON object, the answer the response's head; bytes (of groups) are base64 in both. Record
batches are not carried, their sizes stand in their place. As on all of ``/rpc``, Kafka's error code is in the answer
and the status is 200.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from minikafka.errors import ProtocolError
from minikafka.ports import Buffers, Handler, RequestContext
from minikafka.rest import json_text
from minikafka.wire.codec import decode_json, decode_response, encode_json, encode_request, error_response, find_api

_ANY_API = find_api("ApiVersions")
"""Its error answer has only the members that every response has."""


def json_rpc(handler: Handler) -> Handler:
    """A handler of JSON bodies before the handler of msgpack bodies; the network's ``translate``."""

    async def handle(api_name: str, body: bytes | bytearray, context: RequestContext) -> Buffers:
        try:
            api = find_api(api_name)
        except ProtocolError as error:
            return [encode_json(error_response(_ANY_API, error)) + b"\n"]
        try:
            request = decode_json(api, bytes(body).strip(), json_text.parse)
        except ProtocolError as error:
            return [encode_json(error_response(api, error)) + b"\n"]
        # Each step of a large request takes some milliseconds: others are served in between.
        await asyncio.sleep(0)
        packed = b"".join(encode_request(request))
        await asyncio.sleep(0)
        answering = handler(api_name, packed, context)
        answer = b"".join(await answering if isinstance(answering, Awaitable) else answering)
        await asyncio.sleep(0)
        response = decode_response(api_name, answer)
        await asyncio.sleep(0)
        return [encode_json(response) + b"\n"]

    return handle
