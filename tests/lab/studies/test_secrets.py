"""Passwords in any spelling are removed from messages; words that resemble them are not."""

import shlex
import sys

import pytest

from acmo.lab.errors import LabError
from acmo.lab.redaction import redact, redact_passwords, redact_value
from acmo.lab.studies.storage import Store


@pytest.mark.parametrize("secret", ["it's", 'qu"ote', "two words", "tab\tbed", "a", "p/w?x#y", "%27%20"])
def test_a_password_with_any_sign_in_it_is_blotted_out(secret):
    from urllib.parse import unquote

    url = f"postgresql://me:{secret}@host:5432/db"
    assert Store(url).safe_url == "postgresql://me:***@host:5432/db"
    for form in (secret, unquote(secret)):
        assert (
            redact_passwords(f"refused ({form}), ({url})", url) == "refused (***), (postgresql://me:***@host:5432/db)"
        )


def test_user_and_database_may_bear_the_passwords_name():
    url = "postgresql://postgres:postgres@localhost/postgres"
    assert Store(url).safe_url == "postgresql://postgres:***@localhost/postgres"
    said = f'the database {Store(url).safe_url} cannot be used: no password for user "postgres"'
    assert redact_passwords(said, url) == said.replace('"postgres"', '"***"')


def test_password_before_another_at_sign_is_removed():
    url = "postgresql://me:hunter2@host/db?application_name=a@b"
    assert "hunter2" not in redact_passwords(f"{url} hunter2", url)


def test_words_that_only_sound_secret_stay():
    for text in ("loss per token and more", "the secret of batch norm", "Token: a study"):
        assert redact(text) == text
    assert redact("postgresql://h/db?password=geheim") == "postgresql://h/db?password=***"
    assert redact_value({"postgresql://me:q@c:1@h/db": ["x"]}) == {"postgresql://me:***@h/db": ["x"]}


def test_a_home_folder_is_one_only_at_its_place(monkeypatch):
    monkeypatch.setenv("HOME", "/root")
    told = redact_value(["/root/x", "--data=/root", "/mnt/root/x", "/rooted", {"/root/a.py:T": 1}])
    assert told == ["~/x", "--data=~", "/mnt/root/x", "/rooted", {"~/a.py:T": 1}]


def test_database_error_during_a_comparison_is_a_sentence(tmp_path):
    """Optuna wraps it into an error of its own."""
    import optuna
    from sqlalchemy.exc import OperationalError

    store = Store("postgresql://me:hunter2@host/db")

    def fail() -> None:
        try:
            raise OperationalError("SELECT 1", {}, Exception("server closed the connection to hunter2\nunexpectedly"))
        except OperationalError as error:
            raise optuna.exceptions.StorageInternalError("An exception is raised during the commit.") from error

    with pytest.raises(LabError) as error, store.explained():
        fail()
    assert str(error.value) == (
        "the database postgresql://me:***@host/db cannot be used: server closed the connection to ***"
    )


def test_resume_command_has_no_password_in_any_quoting(tmp_path, monkeypatch, capsys):
    from acmo.lab.cli import main
    from acmo.lab.studies.comparison import Compare

    url = "postgresql://me:it's secret@host/db"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["acmo", "compare", "digits", "--storage", url])
    monkeypatch.setattr(Compare, "run", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(SystemExit) as end:
        main()
    out, err = capsys.readouterr()
    assert end.value.code == 130
    assert "secret" not in out + err
    assert f"  acmo {shlex.join(['compare', 'digits', '--storage', Store(url).safe_url])}" in out
