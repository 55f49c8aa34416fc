"""Where studies are kept: SQLite in the output folder, or a database that many machines share; and its lock."""

import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

from acmo.lab import atomic
from acmo.lab.errors import LabError, missing_extra
from acmo.lab.redaction import redact_passwords, redact_url

T = TypeVar("T")
_LOCK_KEY = 0x61636D6F  # "acmo": the advisory lock's number in PostgreSQL, its name in MySQL


class StorageOutage(LabError):
    """The database cannot be reached now; it may come back."""


@dataclass(frozen=True)
class Store:
    """A database for studies.

    Args:
      url: in SQLAlchemy's form.
      heartbeat: seconds between the signs of life of a running trial.
      grace: seconds without one after which its worker counts as dead.
      retries: how often a trial whose worker died is tried again.
      timeout: seconds to wait for a server that has gone away.
    """

    url: str
    heartbeat: int = 5
    grace: int = 45
    retries: int = 3
    timeout: float = 600

    def __repr__(self) -> str:
        return f"Store({self.safe_url!r})"

    @property
    def safe_url(self) -> str:
        """Return the URL without its password."""
        return redact_url(self.url)

    def check(self) -> None:
        """Raise a `LabError` if the URL itself is wrong."""
        if self._dialect() == "sqlite":
            self._sqlite_path()
        self._url()

    def open(self) -> Any:
        """Return an `optuna.storages.RDBStorage` with its tables made."""
        optuna = import_optuna()
        engine: dict[str, Any] = {"pool_pre_ping": True, "connect_args": self._connect_args()}
        retry = optuna.storages.RetryHeartbeatStaleTrialCallback(max_retry=self.retries)
        with self.lock(), self.explained():
            storage = optuna.storages.RDBStorage(
                self._url(),
                engine_kwargs=engine,
                heartbeat_interval=self.heartbeat,
                grace_period=self.grace,
                heartbeat_stale_trial_callback=retry,
            )
        # Optuna leaves the pool's connections to the garbage collector, of which Python 3.13 warns.
        weakref.finalize(storage, storage.engine.dispose)
        return storage

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep all other processes that use this database, on any machine, out until the end; a dead holder lets go."""
        dialect = self._dialect()
        if dialect == "sqlite":
            with atomic.locked(self._sqlite_path().with_suffix(".lock")):
                yield
            return
        import sqlalchemy

        with self.explained():
            engine = sqlalchemy.create_engine(
                self._url(), poolclass=sqlalchemy.pool.NullPool, connect_args=self._connect_args()
            )
            connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        take, give = {
            "postgresql": ("SELECT pg_advisory_lock(:key)", "SELECT pg_advisory_unlock(:key)"),
            "mysql": ("SELECT GET_LOCK(:key, -1)", "SELECT RELEASE_LOCK(:key)"),
        }[dialect]
        key = _LOCK_KEY if dialect == "postgresql" else f"acmo-{_LOCK_KEY:x}"
        with connection:  # closing it gives the lock back in any case
            with self.explained():
                connection.execute(sqlalchemy.text(take), {"key": key})
            try:
                yield
            finally:
                # A connection that broke has given the lock back already.
                with suppress(StorageOutage), self.explained():
                    connection.execute(sqlalchemy.text(give), {"key": key})

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Raise a `LabError` without the password for an error of the database."""
        from optuna.exceptions import StorageInternalError
        from sqlalchemy.exc import SQLAlchemyError

        try:
            yield
        except (SQLAlchemyError, StorageInternalError, ImportError, OSError) as error:
            if isinstance(error, ImportError):
                extra = "postgres" if self._dialect() == "postgresql" else "lab"
                raise missing_extra("the driver of this database", extra) from None
            # The error inside of Optuna's is more precise.
            cause = error.__cause__ if isinstance(error, StorageInternalError) else error
            cause = _find_first_failure(cause)
            text = str(getattr(cause, "orig", None) or cause or error).strip().splitlines()
            said = redact_passwords(text[0] if text else type(error).__name__, self.url)
            sentence = f"the database {self.safe_url} cannot be used: {said}"
            raise (StorageOutage if self._is_outage(cause) else LabError)(sentence) from None

    def ping(self) -> None:
        """Raise `StorageOutage` if the server cannot be reached."""
        import sqlalchemy

        pool = sqlalchemy.pool.NullPool
        with self.explained():
            engine = sqlalchemy.create_engine(self._url(), poolclass=pool, connect_args=self._connect_args())
            with engine.connect() as connection:
                connection.execute(sqlalchemy.text("SELECT 1"))

    def _is_outage(self, error: BaseException | None) -> bool:
        """Return whether waiting may help: a server is away, not a file of SQLite."""
        from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, PendingRollbackError

        if self._dialect() == "sqlite":
            return False
        lost = isinstance(error, DBAPIError) and error.connection_invalidated
        return lost or isinstance(error, (OperationalError, InterfaceError, PendingRollbackError, OSError))

    def _dialect(self) -> str:
        name = self.url.partition(":")[0].partition("+")[0]
        if name not in ("sqlite", "postgresql", "mysql"):
            raise LabError(f"the storage must be a sqlite, postgresql or mysql URL, got {self.safe_url}")
        return name

    def _connect_args(self) -> dict[str, Any]:
        # A cluster made under LC_ALL=C is in SQL_ASCII: without the client's encoding, psycopg returns bytes.
        known: dict[str, dict[str, Any]] = {"sqlite": {"timeout": 120}, "postgresql": {"client_encoding": "utf8"}}
        return known.get(self._dialect(), {})

    def _url(self) -> str:
        from sqlalchemy import make_url
        from sqlalchemy.exc import ArgumentError

        try:
            url = make_url(self.url)
        except (ArgumentError, ValueError):
            raise LabError(f"the storage URL {self.safe_url} cannot be read as one") from None
        if url.drivername == "postgresql":
            url = url.set(drivername="postgresql+psycopg")  # what acmo[postgres] installs
        return url.render_as_string(hide_password=False)

    def _sqlite_path(self) -> Path:
        path = unquote(self.url.partition("///")[2].partition("?")[0])
        if not path or path == ":memory:":
            raise LabError(f"the storage {self.safe_url} lives in one process only; give it a file: sqlite:///study.db")
        return Path(path)


def _find_first_failure(error: BaseException | None) -> BaseException | None:
    """Return the error of the driver behind SQLAlchemy's refusal to use a connection that was lost.

    Where a query fails, Optuna tries another one on the same connection.
    """
    from sqlalchemy.exc import DBAPIError, PendingRollbackError

    behind = error
    while isinstance(behind, PendingRollbackError):
        behind = behind.__context__
    return behind if isinstance(behind, DBAPIError) else error


def outlast_outages(
    store: Store, action: Callable[[], T], timeout: float, notify: Callable[[str | None], None], settle: bool = False
) -> T:
    """Do something with a database; where the server has gone away, wait for it and do it again.

    Args:
      store: the database.
      action: raises `StorageOutage` if the server is away; doing it again must be safe.
      timeout: seconds after which its error is raised.
      notify: called once with the error, and with None when the server is back.
      settle: let the workers of running trials give signs of life first, or they would all count as dead.
    """
    try:
        return action()
    except StorageOutage as error:
        if timeout <= 0:
            raise
        notify(str(error))
    deadline, pause = time.monotonic() + timeout, 0.5
    while True:
        time.sleep(max(0.0, min(pause, deadline - time.monotonic())))
        pause = min(10.0, pause * 2)
        try:
            store.ping()
            if settle:
                time.sleep(2 * store.heartbeat)
            result = action()
        except StorageOutage:
            if time.monotonic() >= deadline:
                raise
        else:
            notify(None)
            return result


def sqlite_in(folder: Path) -> str:
    """Return the URL of the database in an output folder."""
    return f"sqlite:///{folder.resolve() / 'study.db'}"


def import_optuna() -> Any:
    """Return Optuna, with its logging off."""
    try:
        import optuna
    except ImportError:
        raise missing_extra("optuna") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # it logs every failure again; we report it once
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    warnings.filterwarnings("ignore", message="Heartbeat of storage")  # `Studies.alive` gives it without Study.optimize
    return optuna
