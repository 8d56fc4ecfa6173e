"""Reads jobs from a queue with Microsoft's and CNCF's stock packages, as a foreign system would.

Usage: consumer.py CONNECTION_STRING QUEUE [--peek]

Prints the queue's metadata as one JSON object, then one for each message: its text, its dequeue count, and the
CloudEvent it holds, if the package can read it. Messages are deleted unless --peek is given.
"""

import base64
import binascii
import json
import sys

from azure.storage.queue import QueueClient
from cloudevents.core.formats.json import JSONFormat

VERSION = "2021-12-02"


def as_event(text):
    if not text.lstrip().startswith(("{", "[")):
        try:
            text = base64.b64decode(text, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            return None
    try:
        held = json.loads(text)
        if isinstance(held, list) and len(held) == 1:
            text = json.dumps(held[0])
        event = JSONFormat().read(None, text)
    except Exception as error:  # pylint: disable=broad-except
        return {"error": f"{type(error).__name__}: {error}"}
    data = event.get_data()
    if isinstance(data, bytes):
        data = base64.b64encode(data).decode()
    return {"attributes": {k: str(v) for k, v in event.get_attributes().items()}, "data": data}


def main():
    connection, queue = sys.argv[1:3]
    peek = "--peek" in sys.argv[3:]
    client = QueueClient.from_connection_string(connection, queue, api_version=VERSION)
    print(json.dumps({"metadata": client.get_queue_properties().metadata}))
    messages = client.peek_messages(max_messages=32) if peek else client.receive_messages()
    for message in messages:
        print(
            json.dumps(
                {
                    "text": message.content,
                    "dequeue_count": message.dequeue_count,
                    "event": as_event(message.content),
                }
            )
        )
        if not peek:
            client.delete_message(message)


main()
