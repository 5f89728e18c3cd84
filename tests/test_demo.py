"""The main job on both networks of the paper's tables that a laptop runs in seconds: predicted is measured."""

import pytest

from remat_lab.cli import main
from remat_lab.demo import run_demo

pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("network", "batch", "image", "width"), [("resnet50", 2, 32, 8), ("vgg19", 4, 96, 16)]
)
def test_predicted_is_measured_and_gradients_are_eagers(
    network, batch, image, width, tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("REMAT_LAB_CACHE", str(tmp_path / "cache"))
    rows = run_demo(
        network, batch=batch, image=image, width=width, repeats=1, out=tmp_path / "out", progress=False
    )
    assert {row.plan.method for row in rows} >= {"vanilla", "chen", "kusumoto-approx"}
    assert any(row.plan.schedule.recomputed_ops for row in rows)
    for row in rows:
        assert row.gradients_equal, (
            row
        )  # gradients, BatchNorm statistics; dropout masks through the gradients
        assert abs(row.difference) <= 0.001 * row.run.peak, row
    assert (tmp_path / "out" / "memory_timeline.png").stat().st_size > 10_000
    printed = capsys.readouterr().out
    assert "predicted peak" in printed and (tmp_path / "out" / "table.txt").read_text() in printed


def test_the_command_line_explains_itself(tmp_path, capsys):
    assert main([]) == 0
    assert "solve" in capsys.readouterr().out
    graph = tmp_path / "graph.json"
    import remat_lab as rl

    nodes = [{"name": f"n{i}", "memory": 100} for i in range(9)]
    graph.write_text(
        rl.ComputationGraph.from_nodes(nodes, [(f"n{i}", f"n{i + 1}") for i in range(8)]).to_json()
    )
    assert main(["solve", str(graph), "--budget", "min", "--save", str(tmp_path / "plan.json")]) == 0
    assert "overhead" in capsys.readouterr().out
    assert main(["solve", str(graph), "--budget", "60%", "--json"]) == 0
    assert '"method": "kusumoto-approx"' in capsys.readouterr().out
    for arguments, said in (
        (["--budget", "1"], "least it can do"),
        (["--budget", "lots"], "cannot read 'lots'"),
        (["--method", "kusomoto"], "Closest"),
        (["--option", "objective"], "NAME=VALUE"),
        (["--option", "objective=money"], "objective must be"),
    ):
        assert main(["solve", str(graph), *arguments]) == 2
        assert said in capsys.readouterr().err
    assert main(["solve", str(tmp_path / "missing.json")]) == 2
    assert "missing.json" in capsys.readouterr().err
    assert main(["methods"]) == 0
    assert "kusumoto-approx" in capsys.readouterr().out
