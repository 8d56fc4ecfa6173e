"""Planted faults, as the stock client meets them."""

import threading
import time

from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    ServiceBusAuthenticationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusServerBusyError,
)

from emulator import none, one, raises

RETRIES = {"retry_total": 3, "retry_backoff_factor": 0.01, "retry_mode": "fixed"}


def a_busy_service_refuses_and_recovers(emulator):
    queue = emulator.queue()
    emulator.plant("send", "busy", entity=queue)
    with emulator.opened(queue) as (_, sender, receiver):
        with raises(ServiceBusServerBusyError):
            sender.send_messages(ServiceBusMessage("x"))
        assert emulator.shown(queue)["messages"] == []
        sender.send_messages(ServiceBusMessage("y"))
        assert str(one(receiver)) == "y"


def a_lost_answer_to_a_send_leaves_the_message(emulator):
    queue = emulator.queue()
    fault = emulator.plant("send", "close-connection", entity=queue, performed=True)
    with emulator.opened(queue, client=RETRIES) as (_, sender, receiver):
        # The client cannot know, and sends again.
        sender.send_messages(ServiceBusMessage("x", message_id="same"))
        assert emulator.hits(fault) == 1
        assert [m["id"] for m in emulator.shown(queue)["messages"]] == ["same", "same"]


def a_lost_request_to_send_leaves_nothing(emulator):
    queue = emulator.queue()
    emulator.plant("send", "abort", entity=queue, performed=False)
    with emulator.opened(queue) as (_, sender, _receiver):
        with raises(ServiceBusError):
            sender.send_messages(ServiceBusMessage("x"))
        assert emulator.shown(queue)["messages"] == []


def a_detached_link_settles_over_management(emulator):
    queue = emulator.queue()
    with emulator.opened(queue) as (_, sender, receiver):
        sender.send_messages(ServiceBusMessage("x"))
        message = one(receiver)
        assert emulator.control("POST", "strike", {"action": "detach", "entity": queue})["struck"] == 2
        receiver.complete_message(message)
        assert emulator.control("GET", "calls", operation="update-disposition", entity=queue)
        assert emulator.shown(queue)["messages"] == []


def a_lost_answer_to_a_settlement_applies_it(emulator):
    queue = emulator.queue()
    emulator.plant("complete", "detach", entity=queue, performed=True)
    with emulator.opened(queue) as (_, sender, receiver):
        sender.send_messages(ServiceBusMessage("x"))
        with raises(ServiceBusError):
            receiver.complete_message(one(receiver))
        assert emulator.shown(queue)["messages"] == []


def an_ended_connection_is_reopened(emulator):
    for action in ("close-connection", "abort"):
        queue = emulator.queue()
        with emulator.opened(queue, client=RETRIES) as (_, sender, receiver):
            none(receiver)
            fault = emulator.plant("send", action, entity=queue, performed=False)
            sender.send_messages(ServiceBusMessage(action))
            assert emulator.hits(fault) == 1
            assert str(one(receiver)) == action


def a_refused_connection_is_an_error(emulator):
    queue = emulator.queue()
    fault = emulator.plant("connect", "abort", times=None)
    with raises((ServiceBusConnectionError, ServiceBusError)):
        with emulator.client() as client, client.get_queue_sender(queue):
            pass
    assert emulator.hits(fault) >= 1


def a_renewal_can_fail_wait_or_be_late(emulator):
    queue = emulator.queue()
    with emulator.opened(queue) as (_, sender, receiver):
        sender.send_messages(ServiceBusMessage("x"))
        message = one(receiver)
        emulator.plant("renew-lock", "error", condition="com.microsoft:message-lock-lost", status=410)
        with raises(ServiceBusError):
            receiver.renew_message_lock(message)
        emulator.plant("renew-lock", "delay", milliseconds=300)
        begun = time.monotonic()
        receiver.renew_message_lock(message)
        assert time.monotonic() - begun >= 0.3
        held = emulator.plant("renew-lock", "hold")
        release = lambda: emulator.hits(held, 1) and emulator.control("POST", f"faults/{held}/release")
        waiting = threading.Thread(target=release)
        waiting.start()
        receiver.renew_message_lock(message)
        waiting.join()


def a_fault_can_skip_calls(emulator):
    queue = emulator.queue()
    emulator.plant("send", "busy", entity=queue, skip=1, times=2)
    with emulator.opened(queue) as (_, sender, _receiver):
        sender.send_messages(ServiceBusMessage("x"))
        for _ in range(2):
            with raises(ServiceBusServerBusyError):
                sender.send_messages(ServiceBusMessage("x"))
        sender.send_messages(ServiceBusMessage("x"))
        assert len(emulator.control("GET", "calls", operation="send", entity=queue)) == 4


def a_wrong_key_is_refused(emulator):
    queue = emulator.queue()
    wrong = emulator.connection_string.replace("SharedAccessKey=", "SharedAccessKey=AAAA")
    from azure.servicebus import ServiceBusClient

    with ServiceBusClient.from_connection_string(wrong, retry_total=0) as client:
        with raises(ServiceBusAuthenticationError):
            with client.get_queue_sender(queue) as sender:
                sender.send_messages(ServiceBusMessage("x"))


def a_failing_management_api_is_told(emulator):
    queue = emulator.queue()
    emulator.plant("http-get", "error", entity=queue, status=403, description="no Manage claim")
    with emulator.admin() as admin:
        with raises(HttpResponseError):
            admin.get_queue(queue)
        assert admin.get_queue(queue).max_delivery_count == 10


CHECKS = [check for name, check in list(globals().items()) if name.startswith(("a_", "an_"))]
