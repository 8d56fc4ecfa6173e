"""Scheduled messages, peeking, duplicates and time to live."""

import datetime

from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import MessageNotFoundError

from emulator import none, one, raises


def later(seconds):
    return datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=seconds)


def scheduled_messages_appear_when_due(emulator):
    queue = emulator.queue()
    at = emulator.control("GET", "clock")["now"] / 1000
    when = datetime.datetime.fromtimestamp(at + 60, datetime.timezone.utc)
    with emulator.opened(queue) as (_, sender, receiver):
        numbers = sender.schedule_messages([ServiceBusMessage("a"), ServiceBusMessage("b")], when)
        sender.send_messages(ServiceBusMessage("c", scheduled_enqueue_time_utc=when))
        assert numbers == [1, 2], numbers
        none(receiver)
        peeked = receiver.peek_messages(10)
        assert [(str(p), p.state.value) for p in peeked] == [("a", 2), ("b", 2), ("c", 2)], peeked
        emulator.advance(61)
        texts = set()
        for number in (4, 5, 6):
            message = one(receiver)
            assert message.enqueued_time_utc >= when.replace(microsecond=0), message
            # It is appended to the queue when its time has come.
            assert message.sequence_number == number, message
            texts.add(str(message))
            receiver.complete_message(message)
        assert texts == set("abc"), texts


def a_scheduled_message_can_be_cancelled_once(emulator):
    queue = emulator.queue()
    with emulator.opened(queue) as (_, sender, receiver):
        number = sender.schedule_messages(ServiceBusMessage("never"), later(100_000))
        sender.cancel_scheduled_messages(number)
        assert receiver.peek_messages() == []
        with raises(MessageNotFoundError):
            sender.cancel_scheduled_messages(number)


def peeking_sees_all_from_a_number_on(emulator):
    queue = emulator.queue()
    with emulator.opened(queue) as (_, sender, receiver):
        sender.send_messages([ServiceBusMessage(str(i)) for i in range(40)])
        held = one(receiver)
        assert len(receiver.peek_messages(100, sequence_number=1)) == 40
        assert [str(m) for m in receiver.peek_messages(2, sequence_number=5)] == ["4", "5"]
        receiver.complete_message(held)


def duplicates_are_dropped_within_the_window(emulator):
    queue = emulator.queue(RequiresDuplicateDetection=True, DuplicateDetectionHistoryTimeWindow="PT1M")
    with emulator.opened(queue) as (_, sender, receiver):
        same = lambda text: ServiceBusMessage(text, message_id="same")
        sender.send_messages(same("first"))
        sender.send_messages([same("second"), ServiceBusMessage("other", message_id="other")])
        receiver.complete_message(one(receiver))
        assert str(one(receiver)) == "other"
        none(receiver)
        emulator.advance(61)
        sender.send_messages(same("third"))
        assert "third" in (str(one(receiver)), str(one(receiver)))


def an_expired_message_is_dropped_or_dead_lettered(emulator):
    for buries in (False, True):
        queue = emulator.queue(DeadLetteringOnMessageExpiration=buries, DefaultMessageTimeToLive="PT1H")
        with emulator.opened(queue) as (client, sender, receiver):
            sender.send_messages(ServiceBusMessage("x", time_to_live=datetime.timedelta(seconds=30)))
            sender.send_messages(ServiceBusMessage("y"))
            emulator.advance(31)
            assert str(one(receiver)) == "y"
            with client.get_queue_receiver(queue, sub_queue="deadletter") as dead:
                if buries:
                    assert one(dead).dead_letter_reason == "TTLExpiredException"
                else:
                    none(dead)


def a_locked_message_does_not_expire(emulator):
    queue = emulator.queue(DefaultMessageTimeToLive="PT30S")
    with emulator.opened(queue) as (_, sender, receiver):
        sender.send_messages(ServiceBusMessage("x"))
        message = one(receiver)
        emulator.advance(31)
        receiver.complete_message(message)


CHECKS = [check for name, check in list(globals().items()) if name.startswith(("a_", "an_", "scheduled_", "peeking_", "dup"))]
