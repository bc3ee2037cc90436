"""Two processes: whoever calls `model.sample` gets images, whatever the others do."""

from tests.training.test_processes import two


def test_one_process_may_draw_alone_and_drivers_split(tmp_path):
    two("-m", "tests.training.workers", "drawing", str(tmp_path))
