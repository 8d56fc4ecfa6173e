"""Sends jobs to a queue with Microsoft's and CNCF's stock packages, as a foreign system would.

Usage: producer.py CONNECTION_STRING QUEUE, with one JSON object a line on standard input:

    {"type": "thumbnail/request", "data": {...}}            a CloudEvent, as text
    {"type": "...", "data": {...}, "base64": true}          the same, in base64
    {"type": "...", "data": {...}, "attributes": {...}}     with further attributes
    {"bare": {...}}                                         JSON without an envelope
    {"text": "anything"}                                    a text as it is
    {"metadata": {"poisonthreshold": "3"}}                  no message: replaces the queue's metadata

Prints the identity of each event sent, one a line; an empty line for what has none.
"""

import json
import sys

from azure.storage.queue import QueueClient, TextBase64EncodePolicy
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

VERSION = "2021-12-02"


def main():
    connection, queue = sys.argv[1:3]
    plain = QueueClient.from_connection_string(connection, queue, api_version=VERSION)
    encoded = QueueClient.from_connection_string(
        connection, queue, api_version=VERSION, message_encode_policy=TextBase64EncodePolicy()
    )
    for line in sys.stdin:
        job = json.loads(line)
        identity = ""
        if "metadata" in job:
            plain.set_queue_metadata(metadata=job["metadata"])
        elif "bare" in job:
            plain.send_message(json.dumps(job["bare"]))
        elif "text" in job:
            plain.send_message(job["text"])
        else:
            attributes = {
                "type": job["type"],
                "source": "urn:interop:producer",
                "datacontenttype": "application/json",
                **job.get("attributes", {}),
            }
            event = CloudEvent(attributes=attributes, data=job["data"])
            text = JSONFormat().write(event).decode()
            (encoded if job.get("base64") else plain).send_message(text)
            identity = event.get_id()
        print(identity, flush=True)


main()
