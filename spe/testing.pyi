from replicas.testing import *  # noqa: F403
