"""No key or token gets into anything that a training leaves, shows or sends."""

from pathlib import Path

from command_line import all_runs
from wandb_server import KEY

FROM_THE_ENVIRONMENT = "only-the-environment-knows-this"
FROM_AN_OVERRIDE = "only-the-command-line-knows-this"
KEYED = ("model=custom", "model._target_=own_models.Keyed", "data=digits", "trainer.steps=2")


def files_and_output(ended):
    files = {str(path): path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    return files | {"stdout": ended.out.encode(), "stderr": ended.err.encode()}


def test_secrets_stay_where_they_came_from(train, online, monkeypatch):
    monkeypatch.setenv("MY_SERVICE_TOKEN", FROM_THE_ENVIRONMENT)
    ended = train(
        *("-m", *KEYED, f"+model.api_key={FROM_AN_OVERRIDE}", "+model.breaks=false,true", "trainer.checkpoint_every=1"),
        *("tracking.notes=${oc.env:MY_SERVICE_TOKEN}", "tracking.checkpoints=true"),
    )
    assert ended.code == 1
    fine, broken = all_runs()
    assert fine.record.config["model"]["api_key"] == "***"
    assert broken.record.error.startswith("RuntimeError: the service does not take ***")
    assert "the service does not take ***" in (broken.directory / "error.txt").read_text()
    assert len(online.runs) == 3, "with the comparison"
    secrets = [secret.encode() for secret in (FROM_THE_ENVIRONMENT, FROM_AN_OVERRIDE, KEY)]
    texts = files_and_output(ended)
    texts |= {f"{request.path} {request.operation}": request.body for request in online.recorded.requests}
    assert any(name.endswith("comparison.html") for name in texts)
    assert any("storage/artifacts" in name for name in texts)
    assert [name for name, content in texts.items() if any(secret in content for secret in secrets)] == []


def test_a_secret_recurs_nowhere(train):
    secret = "known-as-a-key-alone"
    more = ("+model.breaks=false", f"tracking.notes=uses {secret}", f"model.name={secret}", "tracking=disabled")
    texts = files_and_output(train("-m", *KEYED, f"+model.api_key={secret}", *more))
    assert [name for name, text in texts.items() if secret in name or secret.encode() in text] == []
    refused = train("model=mlp_small", "tracking=disabled", f"+model.api_key={secret}", f"name={secret}")
    assert refused.code == 2
    assert refused.err == "error: name=***: holds a secret, which would be read in the names of directories\n"
