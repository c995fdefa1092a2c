"""The one step of the build that setup.cfg cannot say: the wheel carries models and protocols.

Both folders stand at the top of the repository, where users look for them. In the wheel they are
`channelfit/examples`, where `channelfit examples DIR` finds them. All else is in setup.cfg.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithExamples(build_py):
    """Copies models and protocols beside the modules; an editable install needs no copies."""

    def run(self):
        super().run()
        if self.editable_mode:
            return
        for name in ("models", "protocols"):
            target = Path(self.build_lib, "channelfit", "examples", name)
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(name, target, ignore=shutil.ignore_patterns(".*", "__pycache__"))


setup(cmdclass={"build_py": BuildWithExamples})
