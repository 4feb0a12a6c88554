"""The common part of Kafka sources and sinks: the library, its settings, and error messages."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from replicas.connectors.secret import secret
from spe.errors import ServerAway, SpeError

#: Time limit of a request, seconds; a silent broker is tried again after it.
REQUEST_S: Final = 10.0
#: Number of times that a topic must be missing, and the time between them: a broker that has just started, or a topic
#: that was just made, may not be known yet.
MISSING_TIMES: Final = 4
MISSING_S: Final = 0.2
#: Settings of every client.  A broker that is away is retried soon, but not continuously.
_SETTINGS: Final[Mapping[str, Any]] = {
    "client.id": "tentative-spe",
    "socket.timeout.ms": round(REQUEST_S * 1000),
    "socket.keepalive.enable": True,
    "reconnect.backoff.ms": 100,
    "reconnect.backoff.max.ms": 2_000,
    "log_level": 0,  # important messages come as errors, and are reported once
}
_FILES: Final = {"ca": "ssl.ca.location", "certificate": "ssl.certificate.location", "key": "ssl.key.location"}


def library() -> Any:
    """Imports confluent_kafka, an extra.  Raises SpeError."""
    try:
        import confluent_kafka
    except ImportError as error:
        raise SpeError(f"kafka needs the extra kafka: pip install '.[kafka]' ({error})") from error
    return confluent_kafka


def settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of a client, and reads its secrets.

    Raises:
      SpeError: a secret or a file is missing; says which.
    """
    result = {**_SETTINGS, **(options.get("properties") or {}), "bootstrap.servers": ",".join(options["servers"])}
    security: Mapping[str, Any] = options.get("security") or {}
    if not security:
        return result
    result["security.protocol"] = security["protocol"]
    if security["protocol"].startswith("sasl"):
        result["sasl.mechanism"] = security["mechanism"]
        result["sasl.username"] = secret("kafka.security.username", security["username"])
        result["sasl.password"] = secret("kafka.security.password", security["password"])
    for name, setting in _FILES.items():
        if (path := security.get(name)) is not None:
            if not Path(path).is_file():
                raise SpeError(f"kafka.security.{name}: there is no file {path}")
            result[setting] = path
    if (key_password := security.get("key_password")) is not None:
        result["ssl.key.password"] = secret("kafka.security.key_password", key_password)
    return result


def made(make: Any, wanted: Mapping[str, Any]) -> Any:
    """Makes a client.  Raises SpeError: the library refuses a setting; the settings themselves are not shown."""
    try:
        return make(dict(wanted))
    except library().KafkaException as error:
        raise SpeError(f"kafka: the client refuses its settings: {error.args[0].str()}") from error
    except (TypeError, ValueError) as error:
        raise SpeError(f"kafka: the client refuses its settings: {error}") from error


def admin(wanted: Mapping[str, Any]) -> Any:
    """Makes a client that asks about topics, and makes them.  Raises as :func:`made`."""
    from confluent_kafka.admin import AdminClient

    return made(AdminClient, wanted)


class Codes:
    """Groups of error codes, by the necessary action."""

    def __init__(self) -> None:
        code = library().KafkaError
        #: A retry may help: a broker is away, or another one takes over.
        self._away = frozenset(
            (
                code.REQUEST_TIMED_OUT, code.LEADER_NOT_AVAILABLE, code.NOT_LEADER_FOR_PARTITION,
                code.BROKER_NOT_AVAILABLE, code.REPLICA_NOT_AVAILABLE, code.NETWORK_EXCEPTION,
                code.COORDINATOR_LOAD_IN_PROGRESS, code.COORDINATOR_NOT_AVAILABLE, code.NOT_COORDINATOR,
                code.NOT_ENOUGH_REPLICAS, code.NOT_ENOUGH_REPLICAS_AFTER_APPEND, code.KAFKA_STORAGE_ERROR,
                code.FENCED_LEADER_EPOCH, code.UNKNOWN_LEADER_EPOCH, code.CONCURRENT_TRANSACTIONS,
                code.OFFSET_NOT_AVAILABLE, code.NOT_CONTROLLER, code.INVALID_MSG, code.UNSTABLE_OFFSET_COMMIT,
                code.LISTENER_NOT_FOUND, code.FETCH_SESSION_ID_NOT_FOUND, code.INVALID_FETCH_SESSION_EPOCH,
                code.UNKNOWN_TOPIC_ID, code.INCONSISTENT_TOPIC_ID,
            )
        )  # fmt: skip
        #: Errors of the client itself, which has negative codes, that a retry does not help.
        self._lasting = frozenset(
            (code._FATAL, code._FENCED, code._INVALID_ARG, code._NOT_IMPLEMENTED, code._NOT_CONFIGURED, code._CONFLICT,
             code._INVALID_TYPE, code._INCONSISTENT, code._GAPLESS_GUARANTEE, code._LOG_TRUNCATION, code._FS,
             code._UNKNOWN_PROTOCOL)
        )  # fmt: skip
        self.credentials = frozenset(
            (code._AUTHENTICATION, code.SASL_AUTHENTICATION_FAILED, code.UNSUPPORTED_SASL_MECHANISM, code._SSL,
             code.ILLEGAL_SASL_STATE, code._UNSUPPORTED_FEATURE)
        )  # fmt: skip
        self.rights = frozenset(
            (code.TOPIC_AUTHORIZATION_FAILED, code.GROUP_AUTHORIZATION_FAILED, code.CLUSTER_AUTHORIZATION_FAILED,
             code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        )  # fmt: skip
        #: Another producer of our id has begun.
        self.fenced = frozenset((code._FENCED, code.INVALID_PRODUCER_EPOCH, code.PRODUCER_FENCED))
        #: The same rows will never be taken.
        self.final = self.credentials | self.rights | frozenset(
            (code.MSG_SIZE_TOO_LARGE, code.INVALID_RECORD, code.TOPIC_EXCEPTION, code.POLICY_VIOLATION,
             code.INVALID_TIMESTAMP)
        )  # fmt: skip
        self.missing = frozenset((code.UNKNOWN_TOPIC_OR_PART, code._UNKNOWN_TOPIC, code._UNKNOWN_PARTITION))

    def is_away(self, error: Any) -> bool:
        """Returns whether a retry may help.  A broker that has just started may not know a topic: one that is really
        missing shows when its partitions are counted.
        """
        code = error.code()
        local = code < 0 and code not in self._lasting | self.credentials
        return local or code in self._away | self.missing or bool(error.retriable())


def in_words(error: Any, where: str, codes: Codes) -> SpeError:
    """Converts a KafkaError: to :exc:`ServerAway` if a retry may help, otherwise to SpeError."""
    code, reason = error.code(), error.str() or error.name()
    if code in codes.credentials:
        return SpeError(f"{where} refuses us: {reason}; correct security, or what the broker knows of us")
    if code in codes.rights:
        return SpeError(f"{where}: {reason}; give the user the right")
    if codes.is_away(error):
        return ServerAway(f"{where} does not answer: {reason}")
    return SpeError(f"{where}: {reason}")
