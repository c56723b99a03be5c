"""JSON on ``/rpc/{Api}``: the protocol itself for curl (D7).

The request is the head as a JSON object, the answer the response's head; bytes (of groups) are base64 in both. Record
batches are not carried, their sizes stand in their place. As on all of ``/rpc``, Kafka's error code is in the answer
and the status is 200.
"""

from __future__ import annotations

from minikafka.errors import ProtocolError
from minikafka.ports import Buffers, Handler, RequestContext
from minikafka.rest import json_text
from minikafka.wire.codec import decode_json, encode_json, encode_request, error_response, find_api, response_to_json

_ANY_API = find_api("ApiVersions")
"""Its error answer has only the members that every response has."""


def json_rpc(handler: Handler) -> Handler:
    """A handler of JSON bodies before the handler of msgpack bodies; the network's ``translate``."""

    async def handle(api_name: str, body: bytes, context: RequestContext) -> Buffers:
        try:
            api = find_api(api_name)
        except ProtocolError as error:
            return [encode_json(error_response(_ANY_API, error)) + b"\n"]
        try:
            request = encode_request(decode_json(api, body.strip(), json_text.parse))
        except ProtocolError as error:
            return [encode_json(error_response(api, error)) + b"\n"]
        answer = await handler(api_name, b"".join(request), context)
        return [response_to_json(api_name, b"".join(answer)) + b"\n"]

    return handle
