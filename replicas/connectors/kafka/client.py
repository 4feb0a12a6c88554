"""What source and sink of Kafka have in common: the library, its settings, and errors in words."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from replicas.connectors.secret import secret
from spe.errors import ServerAway, SpeError

#: Seconds that a request may take; a broker that does not answer for so long is tried anew.
REQUEST_S: Final = 10.0
#: Settings of every client.  A broker that is away is tried again soon, but not all the time.
_SETTINGS: Final[Mapping[str, Any]] = {
    "client.id": "tentative-spe",
    "socket.timeout.ms": round(REQUEST_S * 1000),
    "socket.keepalive.enable": True,
    "reconnect.backoff.ms": 100,
    "reconnect.backoff.max.ms": 2_000,
    "log_level": 0,  # what matters comes as an error, and is told once
}
_FILES: Final = {"ca": "ssl.ca.location", "certificate": "ssl.certificate.location", "key": "ssl.key.location"}


def library() -> Any:
    """confluent_kafka; an extra, and imported when it is used.  Raises SpeError."""
    try:
        import confluent_kafka
    except ImportError as error:
        raise SpeError(f"kafka needs the extra kafka: pip install '.[kafka]' ({error})") from error
    return confluent_kafka


def settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a client; secrets are read now.

    Raises:
      SpeError: a secret or a file is missing; says which.
    """
    found = {**_SETTINGS, **(options.get("properties") or {}), "bootstrap.servers": ",".join(options["servers"])}
    security: Mapping[str, Any] = options.get("security") or {}
    if not security:
        return found
    found["security.protocol"] = security["protocol"]
    if security["protocol"].startswith("sasl"):
        found["sasl.mechanism"] = security["mechanism"]
        found["sasl.username"] = secret("kafka.security.username", security["username"])
        found["sasl.password"] = secret("kafka.security.password", security["password"])
    for name, setting in _FILES.items():
        if (path := security.get(name)) is not None:
            if not Path(path).is_file():
                raise SpeError(f"kafka.security.{name}: there is no file {path}")
            found[setting] = path
    if (key_password := security.get("key_password")) is not None:
        found["ssl.key.password"] = secret("kafka.security.key_password", key_password)
    return found


def made(make: Any, wanted: Mapping[str, Any]) -> Any:
    """A client.  Raises SpeError where the library refuses a setting; the settings themselves are not shown."""
    try:
        return make(dict(wanted))
    except library().KafkaException as error:
        raise SpeError(f"kafka: the client refuses its settings: {error.args[0].str()}") from error
    except (TypeError, ValueError) as error:
        raise SpeError(f"kafka: the client refuses its settings: {error}") from error


class Codes:
    """Groups of error codes, by what to do."""

    def __init__(self) -> None:
        of = library().KafkaError
        #: Trying again may help: a broker is away, or another one takes over.
        self.away = frozenset(
            (
                of._TRANSPORT, of._ALL_BROKERS_DOWN, of._TIMED_OUT, of._RESOLVE, of._WAIT_COORD, of._TIMED_OUT_QUEUE,
                of.REQUEST_TIMED_OUT, of.LEADER_NOT_AVAILABLE, of.NOT_LEADER_FOR_PARTITION, of.BROKER_NOT_AVAILABLE,
                of.REPLICA_NOT_AVAILABLE, of.NETWORK_EXCEPTION, of.COORDINATOR_LOAD_IN_PROGRESS,
                of.COORDINATOR_NOT_AVAILABLE, of.NOT_COORDINATOR, of.NOT_ENOUGH_REPLICAS, of._STATE,
                of.NOT_ENOUGH_REPLICAS_AFTER_APPEND, of.KAFKA_STORAGE_ERROR, of._PURGE_QUEUE, of._PURGE_INFLIGHT,
                of.FENCED_LEADER_EPOCH, of.UNKNOWN_LEADER_EPOCH, of.CONCURRENT_TRANSACTIONS, of._MSG_TIMED_OUT,
            )
        )  # fmt: skip
        self.credentials = frozenset(
            (of._AUTHENTICATION, of.SASL_AUTHENTICATION_FAILED, of.UNSUPPORTED_SASL_MECHANISM, of._SSL,
             of.ILLEGAL_SASL_STATE, of._UNSUPPORTED_FEATURE)
        )  # fmt: skip
        self.rights = frozenset(
            (of.TOPIC_AUTHORIZATION_FAILED, of.GROUP_AUTHORIZATION_FAILED, of.CLUSTER_AUTHORIZATION_FAILED,
             of.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        )  # fmt: skip
        #: Another producer of our id has begun.
        self.fenced = frozenset((of._FENCED, of.INVALID_PRODUCER_EPOCH, of.PRODUCER_FENCED))
        #: The same rows will never be taken.
        self.final = (
            self.credentials
            | self.rights
            | frozenset(
                (
                    of.MSG_SIZE_TOO_LARGE,
                    of.INVALID_RECORD,
                    of.TOPIC_EXCEPTION,
                    of.POLICY_VIOLATION,
                    of.INVALID_TIMESTAMP,
                )
            )
        )
        self.missing = frozenset((of.UNKNOWN_TOPIC_OR_PART, of._UNKNOWN_TOPIC, of._UNKNOWN_PARTITION))


def in_words(error: Any, where: str, codes: Codes) -> SpeError:
    """A KafkaError as one of ours: :exc:`ServerAway` where trying again may help."""
    code, said = error.code(), error.str() or error.name()
    if code in codes.credentials:
        return SpeError(f"{where} refuses us: {said}; correct security, or what the broker knows of us")
    if code in codes.rights:
        return SpeError(f"{where}: {said}; give the user the right")
    if code in codes.away or error.retriable():
        return ServerAway(f"{where} does not answer: {said}")
    return SpeError(f"{where}: {said}")
