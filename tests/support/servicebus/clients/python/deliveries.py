"""Sending, receiving under a lock, settling."""

import datetime
import uuid

from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode, ServiceBusSubQueue
from azure.servicebus.exceptions import MessageLockLostError, MessageSizeExceededError, ServiceBusError

from emulator import none, one, raises


def a_message_arrives_as_it_was_sent(emulator):
    queue = emulator.queue()
    properties = {"text": "v", "number": 7, "real": 1.5, "flag": True, "id": uuid.uuid4()}
    sent = ServiceBusMessage(
        b"one",
        message_id="m1",
        subject="s",
        correlation_id="c",
        content_type="text/plain",
        application_properties=dict(properties),
        time_to_live=datetime.timedelta(minutes=5),
    )
    with emulator.opened(queue) as (_, sender, receiver):
        sender.send_messages(sent)
        got = one(receiver)
        assert str(got) == "one" and got.message_id == "m1" and got.subject == "s", got
        assert got.correlation_id == "c" and got.content_type == "text/plain", got
        found = {key.decode(): value for key, value in got.application_properties.items()}
        found["text"] = found["text"].decode()
        assert found == properties, found
        assert got.sequence_number == 1 and got.delivery_count == 0 and got.time_to_live.seconds == 300, got
        assert got.enqueued_time_utc and got.locked_until_utc > got.enqueued_time_utc and got.state.value == 0, got
        receiver.complete_message(got)
        assert emulator.shown(queue)["messages"] == []


def a_renewal_moves_the_end_of_the_lock(emulator):
    with emulator.opened(emulator.queue()) as (_, sender, receiver):
        sender.send_messages(ServiceBusMessage("x"))
        message = one(receiver)
        before, token = message.locked_until_utc, message.lock_token
        emulator.advance(30)
        receiver.renew_message_lock(message)
        assert message.locked_until_utc > before and message.lock_token == token
        receiver.complete_message(message)


def an_abandoned_message_returns_at_once_and_is_counted(emulator):
    with emulator.opened(emulator.queue()) as (_, sender, receiver):
        sender.send_messages(ServiceBusMessage("x"))
        first = one(receiver)
        receiver.abandon_message(first)
        again = one(receiver)
        assert again.delivery_count == 1 and again.lock_token != first.lock_token
        receiver.complete_message(again)


def a_lost_lock_refuses_every_operation(emulator):
    with emulator.opened(emulator.queue()) as (_, sender, receiver):
        for settle in ("complete_message", "abandon_message", "defer_message", "dead_letter_message", "renew_message_lock"):
            sender.send_messages(ServiceBusMessage("x"))
            message = one(receiver)
            emulator.advance(61)
            with raises(MessageLockLostError):
                getattr(receiver, settle)(message)
            again = one(receiver)
            assert again.delivery_count == 1, again.delivery_count
            receiver.complete_message(again)


def a_list_is_taken_as_a_whole(emulator):
    with emulator.opened(emulator.queue()) as (_, sender, receiver):
        sender.send_messages([ServiceBusMessage(f"b{i}") for i in range(5)])
        batch = sender.create_message_batch()
        batch.add_message(ServiceBusMessage("b5"))
        sender.send_messages(batch)
        got = []
        while len(got) < 6:
            got += receiver.receive_messages(6 - len(got), 5)
        assert [str(message) for message in got] == [f"b{i}" for i in range(6)]
        for message in got:
            receiver.complete_message(message)


def a_message_of_many_frames_arrives(emulator):
    with emulator.opened(emulator.queue()) as (_, sender, receiver):
        sender.send_messages(ServiceBusMessage(b"x" * 200_000))
        message = one(receiver)
        assert len(b"".join(message.body)) == 200_000
        receiver.complete_message(message)
        with raises(MessageSizeExceededError):
            sender.send_messages(ServiceBusMessage(b"x" * 300_000))


def dead_letters_keep_reason_and_properties(emulator):
    queue = emulator.queue()
    with emulator.opened(queue) as (client, sender, receiver):
        sender.send_messages(ServiceBusMessage("x", message_id="d", application_properties={"k": 1}))
        receiver.dead_letter_message(one(receiver), reason="bad", error_description="very")
        with client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as dead:
            message = one(dead)
            assert message.dead_letter_reason == "bad" and message.dead_letter_error_description == "very"
            assert message.application_properties[b"k"] == 1 and message.message_id == "d"
            dead.complete_message(message)
        with client.get_queue_receiver(queue.upper() + "/$deadletterqueue") as dead:
            none(dead)


def too_many_deliveries_end_among_the_dead_letters(emulator):
    queue = emulator.queue(MaxDeliveryCount=2)
    with emulator.opened(queue) as (client, sender, receiver):
        sender.send_messages(ServiceBusMessage("x"))
        receiver.abandon_message(one(receiver))
        one(receiver)
        # The second delivery is counted by the end of its lock.
        emulator.advance(61)
        none(receiver)
        with client.get_queue_receiver(queue, sub_queue="deadletter") as dead:
            message = one(dead)
            assert message.dead_letter_reason == "MaxDeliveryCountExceeded", message.dead_letter_reason
            dead.complete_message(message)


def a_deferred_message_is_received_by_its_number(emulator):
    queue = emulator.queue()
    with emulator.opened(queue) as (_, sender, receiver):
        sender.send_messages(ServiceBusMessage("x"))
        message = one(receiver)
        receiver.defer_message(message)
        none(receiver)
        assert receiver.peek_messages(sequence_number=1)[0].state.value == 1
        (again,) = receiver.receive_deferred_messages(message.sequence_number)
        assert str(again) == "x" and again.delivery_count == 1
        receiver.complete_message(again)
        assert emulator.shown(queue)["messages"] == []
        with raises(ServiceBusError):
            receiver.receive_deferred_messages(message.sequence_number)


def a_deleting_receiver_takes_no_lock(emulator):
    queue = emulator.queue()
    with emulator.opened(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as (_, sender, receiver):
        sender.send_messages(ServiceBusMessage("x"))
        assert str(one(receiver)) == "x"
        assert emulator.shown(queue)["messages"] == []


CHECKS = [check for name, check in list(globals().items()) if name.startswith(("a_", "an_", "dead_", "too_"))]
