"""FedAdam: Adam on the parameter server, without the correction of its bias."""

from tfdist.start.quiet import tf


class FedAdam(tf.train.Optimizer):
    """The rule, elementwise, with G in the place of a gradient; a and v begin at 0.

        a <- beta_1 * a + (1 - beta_1) * G
        v <- beta_2 * v + (1 - beta_2) * G^2
        c <- c - learning_rate * a / (sqrt(v) + tau)

    `tf.train.AdamOptimizer` divides a and v by 1 - beta^t, which is another rule.

    Sashank Reddi et al., "Adaptive Federated Optimization", ICLR 2021, arXiv 2003.00295.
    """

    def __init__(self, learning_rate, beta_1=0.9, beta_2=0.99, tau=1e-3):
        """Takes the step size, the shares of a and of v that a step keeps, and tau."""
        super().__init__(use_locking=False, name='FedAdam')
        self._rate, self._beta_1, self._beta_2, self._tau = learning_rate, beta_1, beta_2, tau

    def _create_slots(self, var_list):
        for variable in var_list:
            for name in 'mean', 'square':
                self._zeros_slot(variable, name, self._name)

    def _resource_apply_dense(self, grad, handle):
        """Returns an op that makes the step of a variable, `handle`, with its gradient."""
        slots = [self.get_slot(handle, name) for name in ('mean', 'square')]
        mean, square = [
            beta * slot.read_value() + (1 - beta) * new for beta, slot, new in
            zip((self._beta_1, self._beta_2), slots, (grad, tf.square(grad)))]
        step = self._rate * mean / (tf.sqrt(square) + self._tau)
        with tf.control_dependencies([step]):
            return tf.group(handle.assign_sub(step, read_value=False), *[
                slot.assign(value, read_value=False) for slot, value in zip(slots, (mean, square))])
