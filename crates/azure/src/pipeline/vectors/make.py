"""Prints signatures made by Microsoft's Python SDK, for comparison with ours.

Run in a virtual environment with `pip install azure-storage-blob==12.31.1`:

    python make.py > signatures.json
"""

import base64
import hashlib
import json
from types import SimpleNamespace

from azure.core.pipeline import PipelineContext, PipelineRequest
from azure.core.rest import HttpRequest
from azure.storage.blob._shared.authentication import SharedKeyCredentialPolicy

KEY = base64.b64encode(hashlib.sha256(b"a key for tests only").digest()).decode()
DATE = "Fri, 20 Nov 2026 20:37:46 GMT"
VERSION = "2021-12-02"


def case(name, account, method, url, headers=None, body=b""):
    headers = {"x-ms-date": DATE, "x-ms-version": VERSION, **(headers or {})}
    if body:
        headers["Content-Length"] = str(len(body))
    http = HttpRequest(method, url, headers=headers)
    # The SDK keeps the query apart, as it was written.
    query = dict(pair.split("=", 1) for pair in url.partition("?")[2].split("&") if pair)
    http.__dict__["query"] = query
    request = PipelineRequest(
        SimpleNamespace(method=method, url=url, headers=http.headers, query=query),
        PipelineContext(None),
    )
    SharedKeyCredentialPolicy(account, KEY).on_request(request)
    return {
        "name": name,
        "account": account,
        "method": method,
        "url": url,
        "headers": headers,
        "body_length": len(body),
        "authorization": request.http_request.headers["Authorization"],
    }


HOST = "https://myaccount.queue.core.windows.net"
BLOBS = "https://myaccount.blob.core.windows.net"
LOCAL = "http://127.0.0.1:10001/devstoreaccount1"

cases = [
    case("list queues", "myaccount", "GET", f"{HOST}/?comp=list&prefix=a%20b"),
    case(
        "create queue with metadata",
        "myaccount",
        "PUT",
        f"{HOST}/orders",
        {"x-ms-meta-a1": "one", "x-ms-meta-a_b": "two", "x-ms-meta-ab": " three ".strip(), "Content-Length": "0"},
    ),
    case(
        "put message",
        "myaccount",
        "POST",
        f"{HOST}/orders/messages?messagettl=-1&visibilitytimeout=0",
        {"Content-Type": "application/xml"},
        b"<QueueMessage><MessageText>hi</MessageText></QueueMessage>",
    ),
    case(
        "delete message with a special receipt",
        "myaccount",
        "DELETE",
        f"{HOST}/orders/messages/5974b586-0df3-4e2d-ad0c-18e3892bfca2?popreceipt=AgAAAAMA%2B%2F%3D%2520%20x",
    ),
    case(
        "path-style address",
        "devstoreaccount1",
        "GET",
        f"{LOCAL}/orders/messages?numofmessages=32&visibilitytimeout=30",
    ),
    case(
        "put blob on condition",
        "myaccount",
        "PUT",
        f"{BLOBS}/payloads/20261120/a=b/0190",
        {
            "Content-Type": "application/octet-stream",
            "If-None-Match": "*",
            "x-ms-blob-type": "BlockBlob",
            "x-ms-client-request-id": "11111111-2222-3333-4444-555555555555",
        },
        b"payload",
    ),
    case(
        "get part of a blob",
        "myaccount",
        "GET",
        f"{BLOBS}/payloads/0190",
        {"x-ms-range": "bytes=0-1023", "If-Match": '"0x8DB"'},
    ),
    case(
        "acquire lease",
        "myaccount",
        "PUT",
        f"{BLOBS}/leaders/main?comp=lease",
        {
            "x-ms-lease-action": "acquire",
            "x-ms-lease-duration": "15",
            "x-ms-proposed-lease-id": "1f812371-a41d-49e6-b123-f4b542e851c5",
        },
    ),
]

print(json.dumps({"key": KEY, "cases": cases}, indent=2))
