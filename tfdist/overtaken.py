"""A step that is complete, and its chief waits for it: then the chief has to begin again.

A run of its earlier life, which its machine did not survive, may go on waiting on the ps until that
learns that the connection is dead. It completes the step in which the chief joins, and the chief
waits for one that it has no part in, while the others wait for the chief.
"""

import time

_LOOK_EVERY_SECS, _LOOKS = 2, 3  # a step that is complete ends the chief's run within a moment


def watch(session, local_step, global_step):
    """Closes a session when it stands in a step that is complete.

    Args:
      session: `tf.Session`, the chief's. It gets another one then, and joins again.
      local_step: integer scalar tensor, the step in which the chief is.
      global_step: integer scalar tensor, the step in which all others are.
    """
    look = session.make_callable([local_step, global_step])
    before, stands = None, 0
    while stands < _LOOKS:
        time.sleep(_LOOK_EVERY_SECS)
        now = look()
        stands = stands + 1 if now == before and now[0] < now[1] else 0
        before = now
    session.close()
