"""Sends, reads and redrives jobs by the wire format alone (docs/wire-format.md), with Microsoft's stock packages.

Usage: jobs.py CONNECTION_STRING QUEUE COMMAND

    send TYPE [KEY]    one JSON payload on standard input; prints the job's id. What does not fit goes into a blob
    dead               prints each dead letter as one JSON object a line: id, reason, error, and the payload's length
    redrive ID         puts the dead letter with this id back; prints true or false
    revive             the text of a dead letter on standard input; prints the text with which its job begins anew
"""

import base64
import binascii
import datetime
import hashlib
import json
import sys
import time
import uuid

from azure.core.exceptions import ResourceExistsError
from azure.storage.blob import BlobServiceClient
from azure.storage.queue import QueueClient

VERSION = "2021-12-02"
CONTAINER = "jobqueue-payloads"
MAX_TEXT = 65_536
MAX_ESCAPED = 131_000
MAX_FENCE = 2**53 - 1
UNREADABLE = "jobqueue.unreadable"
# What a job loses when it begins anew.
HISTORY = {
    "attempts", "excused", "deliverycount", "handlerfinished", "deferred", "deferredfor", "deferredsince", "lasterror",
    "checkpoint", "checkpointref", "checkpointsize", "checkpointsha256", "fifocopy", "fifopage",
}


def fits(text):
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\r", "&#13;")
    return len(text.encode()) <= MAX_TEXT and len(escaped.encode()) <= MAX_ESCAPED


def to_text(event):
    # ASCII: what XML cannot carry is written as an escape.
    return json.dumps(event, separators=(",", ":"))


def read(text):
    """The event in a text; none for the text of another program."""
    if not text.lstrip().startswith(("{", "[")):
        try:
            plain = text.replace("-", "+").replace("_", "/")
            text = base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            return None
    try:
        event = json.loads(text)
    except json.JSONDecodeError:
        return None
    if isinstance(event, list) and len(event) == 1:
        event = event[0]
    return event if isinstance(event, dict) and "specversion" in event else None


def store(blobs, queue, data):
    """Writes a payload and returns what refers to it. The blob comes before the message."""
    day = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%d")
    name = f"{day}/{queue}/{uuid.uuid4()}"
    container = blobs.get_container_client(CONTAINER)
    try:
        container.create_container()
    except ResourceExistsError:
        pass
    container.upload_blob(name, data, overwrite=False, metadata={"expires": "never"})
    return {"dataref": name, "datasize": len(data), "datasha256": hashlib.sha256(data).hexdigest()}


def load(blobs, event):
    """The bytes of a payload, verified."""
    if "data_base64" in event:
        return base64.b64decode(event["data_base64"])
    if "dataref" not in event:
        return json.dumps(event.get("data")).encode()
    data = blobs.get_blob_client(CONTAINER, event["dataref"]).download_blob().readall()
    if len(data) != int(event["datasize"]) or hashlib.sha256(data).hexdigest() != event["datasha256"]:
        raise ValueError("the payload is not what was sent")
    return data


def send(queues, blobs, name, kind, key):
    event = {
        "specversion": "1.0",
        "id": str(uuid.uuid4()),
        "source": "urn:interop:jobs",
        "type": kind,
        "time": datetime.datetime.now(datetime.timezone.utc).isoformat(),
        "datacontenttype": "application/json",
        "schemaversion": 1,
    }
    if key:
        event["key"] = key
    payload = json.load(sys.stdin)
    text = to_text({**event, "data": payload})
    if not fits(text):
        text = to_text({**event, **store(blobs, name, json.dumps(payload).encode())})
    queues(name).send_message(text, time_to_live=-1)
    print(event["id"])


def dead(queues, blobs, name):
    for message in queues(f"{name}-poison").peek_messages(max_messages=32):
        event = read(message.content) or {"id": message.id, "data": message.content}
        print(
            json.dumps(
                {
                    "id": event["id"],
                    "reason": event.get("deadletterreason"),
                    "error": event.get("lasterror"),
                    "bytes": len(load(blobs, event)),
                }
            )
        )


def revived(blobs, text):
    """The text with which the job of a dead letter begins anew."""
    event = read(text)
    if event is None:
        return text
    if event["type"] == UNREADABLE:
        return json.loads(load(blobs, event))
    fence = int(event.get("fencebase", 0)) + int(event.get("deadletterdeliveries", 0)) + 1024
    kept = {k: v for k, v in event.items() if k not in HISTORY and not k.startswith("deadletter")}
    kept["fencebase"] = min(max(fence, int(time.time() * 1000) * 1024), MAX_FENCE)
    return to_text(kept)


def redrive(queues, blobs, name, wanted):
    letters = queues(f"{name}-poison")
    for message in letters.receive_messages(visibility_timeout=30):
        if (read(message.content) or {"id": message.id})["id"] == wanted:
            queues(name).send_message(revived(blobs, message.content), time_to_live=-1)
            # Only now: a crash in between leaves both, and nothing is lost.
            letters.delete_message(message)
            print("true")
            return
        letters.update_message(message, visibility_timeout=0)
    print("false")


def main():
    connection, name, command, *rest = sys.argv[1:]
    if command == "revive":
        print(revived(None, sys.stdin.read()))
        return
    blobs = BlobServiceClient.from_connection_string(connection, api_version=VERSION)

    def queues(queue):
        # Without retries: two messages must not refer to one blob.
        return QueueClient.from_connection_string(connection, queue, api_version=VERSION, retry_total=0)

    if command == "send":
        send(queues, blobs, name, rest[0], rest[1] if rest[1:] else None)
    elif command == "dead":
        dead(queues, blobs, name)
    elif command == "redrive":
        redrive(queues, blobs, name, rest[0])
    else:
        sys.exit(__doc__)


main()
