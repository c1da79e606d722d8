"""Small models, each with one idiom of public code for TensorFlow 1.

A model is a function of a batch and `training`, as in test_building.py, whose batches it takes. It
is written as for plain TensorFlow, where it has to train the same. Optimizers are functions of a
learning rate.
"""

import re

import tensorflow.compat.v1 as tf

from test_building import BATCH, error, FEATURES, IN_PLAIN_TENSORFLOW

KEYS = tf.GraphKeys


def layer(units, width):
    """Returns tanh of a dense layer; its kernel and bias are in the scope."""
    kernel = tf.get_variable('kernel', [units.shape[-1], width],
                             initializer=tf.constant_initializer(0.3))
    return tf.nn.tanh(tf.matmul(units, kernel) + tf.get_variable(
        'bias', [width], initializer=tf.constant_initializer(0.1)))


def two_layers(batch, training=True):
    """A network without an idiom, for those of losses, optimizers and starts."""
    del training
    with tf.variable_scope('first'):
        units = layer(batch['x'], 4)
    with tf.variable_scope('second'):
        return error(layer(units, 3), batch)


def rows_and_a_layer(batch, training=True):
    """The same with a table."""
    del training
    table = tf.get_variable('table', [5, 3])
    return error(layer(tf.gather(table, batch['ids'][:, 0]), 2), batch)


def half_precise(batch, training=True):
    """Computes in float16, in which its gradients are nothing unless the loss is scaled."""
    del training
    weights = tf.get_variable('weights', [FEATURES, 3])
    units = tf.matmul(tf.cast(batch['x'], tf.float16), tf.cast(weights, tf.float16))
    loss, metrics = error(tf.cast(units, tf.float32), batch)
    return 1e-6 * loss, metrics


# Weight decay, by each way to come by the weights.

def decay(variables):
    """Returns the loss of weights; some there have to be."""
    return 0.1 * tf.add_n([tf.nn.l2_loss(variable) for variable in variables])


def decay_over_trainable_variables(batch, training):
    loss, metrics = two_layers(batch, training)
    return loss + decay(v for v in tf.trainable_variables() if 'bias' not in v.name), metrics


def decay_over_trainable_variables_of_a_scope(batch, training):
    loss, metrics = two_layers(batch, training)
    return loss + decay(tf.trainable_variables('second')), metrics


def decay_over_a_collection_of_a_scope(batch, training):
    loss, metrics = two_layers(batch, training)
    return loss + decay(tf.get_collection(KEYS.TRAINABLE_VARIABLES, scope='second')), metrics


def decay_over_global_variables(batch, training):
    loss, metrics = two_layers(batch, training)
    return loss + decay(v for v in tf.global_variables() if 'kernel' in v.name), metrics


def decay_over_a_layer(batch, training):
    del training
    first = tf.layers.Dense(4, tf.nn.tanh, kernel_initializer=tf.zeros_initializer())
    second = tf.layers.Dense(2, kernel_initializer=tf.zeros_initializer())
    loss, metrics = error(second(first(batch['x'])), batch)
    return loss + decay([first.kernel, *second.trainable_weights]), metrics


def decay_over_a_collection_of_its_own(batch, training):
    del training
    weights = tf.get_variable('weights', [FEATURES, 3])
    tf.add_to_collection('WEIGHTS', weights)
    loss, metrics = error(tf.nn.relu(tf.matmul(batch['x'], weights)), batch)
    return loss + decay(tf.get_collection('WEIGHTS')), metrics


def decay_over_collections_of_get_variable(batch, training):
    del training
    weights = tf.get_variable('weights', [FEATURES, 3], collections=['mine', KEYS.GLOBAL_VARIABLES])
    loss, metrics = error(tf.nn.relu(tf.matmul(batch['x'], weights)), batch)
    return loss + decay(tf.get_collection('mine')), metrics


def decay_over_a_scope(batch, training):
    del training
    with tf.variable_scope('network') as scope:
        loss, metrics = error(layer(batch['x'], 3), batch)
    return loss + decay(scope.trainable_variables()), metrics


# Losses in collections.

def losses_in_a_collection(batch, training, name='losses', scope=None):
    """As in the tutorial of CIFAR-10."""
    del training
    weights = tf.get_variable('weights', [FEATURES, 3])
    tf.add_to_collection(name, 0.1 * tf.nn.l2_loss(weights))
    loss, metrics = error(tf.nn.tanh(tf.matmul(batch['x'], weights)), batch)
    tf.add_to_collection(name, loss)
    return tf.add_n(tf.get_collection(name, scope), name='total_loss'), metrics


def losses_in_a_collection_of_its_own(batch, training):
    """By a name that TensorFlow does not have."""
    return losses_in_a_collection(batch, training, 'terms')


def losses_of_a_tower(batch, training):
    with tf.name_scope('tower') as scope:
        return losses_in_a_collection(batch, training, 'terms', scope)


def total_of_what_is_in_the_loss(batch, training):
    del training
    weights = tf.get_variable('weights', [FEATURES], regularizer=tf.nn.l2_loss)
    tf.losses.mean_squared_error(batch['y'], tf.linalg.matvec(batch['x'], weights))
    tf.losses.absolute_difference(batch['y'], tf.linalg.matvec(batch['x'], weights), weights=0.1)
    return tf.losses.get_total_loss(), {}


# Moving averages.

def average_of_the_loss(batch, training):
    loss, metrics = two_layers(batch, training)
    update = tf.train.ExponentialMovingAverage(0.9, name='avg').apply([loss])
    if training:
        tf.add_to_collection(KEYS.UPDATE_OPS, update)
    return loss, metrics


def averages_of_the_variables(batch, training):
    """The test uses them."""
    averages = tf.train.ExponentialMovingAverage(0.9)
    loss, metrics = two_layers(batch, training)
    update = averages.apply(tf.trainable_variables())
    if training:
        tf.add_to_collection(KEYS.UPDATE_OPS, update)
        return loss, metrics

    def average(getter, *args, **kwargs):
        return averages.average(getter(*args, **kwargs))

    with tf.variable_scope(tf.get_variable_scope(), reuse=True, custom_getter=average):
        return two_layers(batch, training)


# Gradients in the model.

def gradient_penalty(batch, training):
    loss, metrics = two_layers(batch, training)
    norm = tf.global_norm(tf.gradients(loss, tf.trainable_variables()))
    return loss + 0.1 * tf.square(norm), dict(metrics, norm=norm)


def step_within_the_loss(batch, training):
    """As MAML does."""
    del training
    weights = tf.get_variable('weights', [FEATURES, 2])
    inner, _ = error(tf.nn.tanh(tf.matmul(batch['x'], weights)), batch)
    fast = weights - 0.2 * tf.gradients(inner, [weights])[0]
    return error(tf.nn.tanh(tf.matmul(batch['x'][::-1], fast)), batch)


def gradients_of_inputs(batch, training):
    """As critics of GANs have it."""
    del training
    units = layer(batch['x'], 3)
    slopes, = tf.gradients(units, [batch['x']])
    loss, metrics = error(units, batch)
    return loss + 0.1 * tf.reduce_mean(tf.square(tf.norm(slopes, axis=1) - 1)), metrics


# State of a worker's own: not of the model, and not to be mixed with that of others.

def with_state(batch, training, state):
    """A recurrent layer that goes on where the last batch ended; a test begins anew."""
    before = state.read_value() if training else tf.zeros([tf.shape(batch['x'])[0], 3])
    after = layer(tf.concat([batch['x'], before], axis=1), 3)
    loss, metrics = error(after, batch)
    if training:
        with tf.control_dependencies([state.assign(after)]):
            loss = tf.identity(loss)
    return loss, metrics


def state_by_get_variable(batch, training):
    return with_state(batch, training, tf.get_variable(
        'state', [BATCH, 3], initializer=tf.zeros_initializer(), trainable=False,
        collections=[KEYS.LOCAL_VARIABLES]))


def state_by_variable(batch, training):
    return with_state(batch, training, tf.Variable(
        tf.zeros([BATCH, 3]), name='state', trainable=False, collections=[KEYS.LOCAL_VARIABLES]))


# Models of Keras. None sets the learning phase: whether it is training, the scheme knows.

def dense_norm_dense():
    """Returns three layers."""
    layers = tf.keras.layers
    return layers.Dense(4), layers.BatchNormalization(momentum=0.8), layers.Dense(2)


def keras_functional(batch, training):
    first, norm, last = dense_norm_dense()
    inputs = tf.keras.Input(tensor=batch['x'])
    units = tf.keras.layers.Dropout(0.)(norm(first(inputs)))
    model = tf.keras.Model(inputs, last(units))
    if training and IN_PLAIN_TENSORFLOW:  # in schemes nobody has to
        for update in model.updates:
            tf.add_to_collection(KEYS.UPDATE_OPS, update)
    return error(model.output, batch)


def keras_sequential(batch, training):
    model = tf.keras.Sequential(dense_norm_dense())
    units = model(batch['x'])
    if training:  # whoever does may
        for update in model.updates:
            tf.add_to_collection(KEYS.UPDATE_OPS, update)
    return error(units, batch)


class Subclass(tf.keras.Model):
    """A model with a call of its own."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = dense_norm_dense()

    def call(self, inputs, training=None):
        """Returns the units of a batch."""
        return self.last(tf.nn.relu(self.norm(self.first(inputs), training=training)))


def keras_subclass(batch, training):
    model = Subclass()
    units = model(batch['x'], training=training)
    if training and IN_PLAIN_TENSORFLOW:
        for update in model.updates:
            tf.add_to_collection(KEYS.UPDATE_OPS, update)
    return error(units, batch)


def keras_regularizers(batch, training):
    del training
    model = tf.keras.Sequential([
        tf.keras.layers.Dense(4, 'tanh', kernel_regularizer=tf.keras.regularizers.l2(0.1)),
        tf.keras.layers.Dense(2, bias_regularizer=tf.keras.regularizers.l1(0.1))])
    loss, metrics = error(model(batch['x']), batch)
    return loss + tf.add_n(model.losses), metrics


# Control flow.

def branch_on_the_batch(batch, training):
    del training
    weights, other = (tf.get_variable(name, [FEATURES, 3]) for name in ('weights', 'other'))
    return error(tf.cond(batch['y'][0] > 0, lambda: tf.matmul(batch['x'], weights),
                         lambda: tf.matmul(batch['x'], weights * other)), batch)


def loop(batch, training):
    del training
    weights = tf.get_variable('weights', [FEATURES, FEATURES])
    _, units = tf.while_loop(
        lambda i, _: i < 3, lambda i, units: (i + 1, tf.nn.tanh(tf.matmul(units, weights))),
        [0, batch['x']])
    return error(units, batch)


def mapped(batch, training):
    del training
    weights = tf.get_variable('weights', [FEATURES, 3])
    return error(tf.map_fn(lambda x: tf.linalg.matvec(weights, x, transpose_a=True), batch['x']),
                 batch)


def scanned(batch, training):
    del training
    enter, stay = tf.get_variable('enter', [1, 3]), tf.get_variable('stay', [3, 3])
    in_time = tf.transpose(batch['x'])[:, :, None]
    states = tf.scan(lambda state, x: tf.nn.tanh(tf.matmul(x, enter) + tf.matmul(state, stay)),
                     in_time, tf.zeros([tf.shape(batch['x'])[0], 3]))
    return error(states[-1], batch)


@tf.custom_gradient
def reversed_gradient(units):
    """Returns the units; their gradient has the other sign, as in domain adaptation."""
    return tf.identity(units), lambda gradient: -0.5 * gradient


def custom_gradient(batch, training):
    del training
    with tf.variable_scope('features'):
        units = layer(batch['x'], 4)
    with tf.variable_scope('domain'):
        domain, _ = error(layer(reversed_gradient(units), 1), batch)
    with tf.variable_scope('label'):
        loss, metrics = error(layer(units, 2), batch)
    return loss + domain, metrics


def straight_through(batch, training):
    """Binary units: rounded, with the gradient of what is not."""
    del training
    units = layer(batch['x'], 4)
    units += tf.stop_gradient(tf.sign(units) - units)
    with tf.variable_scope('last'):
        return error(layer(units, 2), batch)


# Ways to make variables, and to share them.

def in_name_scopes(batch, training):
    del training
    units = batch['x']
    for width in 4, 3:
        with tf.name_scope('layer'):
            kernel = tf.Variable(tf.ones([units.shape[1], width]), name='kernel')
            units = tf.nn.tanh(tf.matmul(units, kernel) + tf.Variable(tf.ones([width]), name='b'))
    return error(units, batch)


def siamese(batch, training):
    del training

    def tower(x):
        with tf.variable_scope('tower', reuse=tf.AUTO_REUSE):
            return layer(x, 3)

    return error(tower(batch['x']) * tower(batch['x'][::-1]), batch)


def template(batch, training):
    del training
    tower = tf.make_template('tower', layer, width=3)
    return error(tower(batch['x']) * tower(batch['x'][::-1]), batch)


def auxiliary_head(batch, training):
    with tf.variable_scope('first'):
        units = layer(batch['x'], 4)
    with tf.variable_scope('auxiliary'):
        auxiliary, _ = error(layer(units, 2), batch)
    with tf.variable_scope('last'):
        loss, metrics = error(layer(units, 3), batch)
    return (loss + 0.3 * auxiliary if training else loss), metrics


def target_network(batch, training):
    """As in DQN: the target follows the network that is trained."""
    values = []
    for name in 'online', 'target':
        with tf.variable_scope(name):
            kernel = tf.get_variable('kernel', [FEATURES, 3], trainable=name == 'online')
            values.append(tf.matmul(batch['x'], kernel) + tf.get_variable(
                'bias', [3], trainable=name == 'online'))
    best = batch['y'] + 0.5 * tf.stop_gradient(tf.reduce_max(values[1], axis=1))
    chosen = tf.reduce_sum(values[0] * tf.one_hot(batch['ids'][:, 0] % 3, 3), axis=1)
    loss = tf.reduce_mean(tf.square(chosen - best))
    online, target = (tf.get_collection(KEYS.GLOBAL_VARIABLES, scope=name)
                      for name in ('online', 'target'))
    if training:
        with tf.control_dependencies([loss]):
            tf.add_to_collection(KEYS.UPDATE_OPS, tf.group(
                *[old.assign(0.8 * old + 0.2 * new) for old, new in zip(target, online)]))
    return loss, {'best': tf.reduce_mean(best)}


def adversaries(batch, training):
    """As a GAN with one loss: a discriminator, and one of the same variables that stay."""
    del training

    def judged(x, getter=None):
        with tf.variable_scope('discriminator', reuse=tf.AUTO_REUSE, custom_getter=getter):
            return layer(x, 3)

    def kept(getter, *args, **kwargs):
        return tf.stop_gradient(getter(*args, **kwargs))

    with tf.variable_scope('generator'):
        made = layer(batch['x'][::-1], FEATURES)
    deceived = -judged(made, kept)
    with tf.control_dependencies([deceived]):  # else it may read variables after their update
        losses = deceived, judged(tf.stop_gradient(made)), -judged(batch['x'])
    return tf.add_n([tf.reduce_mean(tf.nn.softplus(loss)) for loss in losses]), {}


# Tables.

def sampled(batch):
    """Returns what both losses of samples take: the samples are drawn by the batch."""
    table, kernel = (tf.get_variable(name, [5, 3]) for name in ('table', 'kernel'))
    ids, labels, samples = batch['ids'][:, 0], batch['ids'][:, 1:2], batch['ids'][:4, 2]
    counts = (samples, 0.5 * tf.ones_like(labels, tf.float32), 0.5 * tf.ones([4]))
    return dict(weights=kernel, biases=tf.get_variable('bias', [5]), labels=labels,
                inputs=tf.nn.embedding_lookup(table, ids), num_sampled=4, num_classes=5,
                sampled_values=counts)


def noise_contrastive(batch, training):
    """As word2vec."""
    del training
    return tf.reduce_mean(tf.nn.nce_loss(**sampled(batch))), {}


def sampled_softmax(batch, training):
    del training
    return tf.reduce_mean(tf.nn.sampled_softmax_loss(**sampled(batch))), {}


def clipped_rows(batch, training):
    del training
    table = tf.get_variable('table', [5, 3])
    rows = tf.nn.embedding_lookup(table, batch['ids'], max_norm=0.8)
    return error(tf.reduce_sum(rows, axis=1), batch)


# Layers of one's own.

def spectral_norm(batch, training):
    weights = tf.get_variable('weights', [FEATURES, 3])
    u = tf.get_variable('u', [1, 3], trainable=False)
    left = tf.stop_gradient(tf.nn.l2_normalize(tf.matmul(u, weights, transpose_b=True)))
    right = tf.stop_gradient(tf.nn.l2_normalize(tf.matmul(left, weights)))
    sigma = tf.matmul(tf.matmul(left, weights), right, transpose_b=True)
    with tf.control_dependencies([u.assign(right)] if training else []):
        return error(tf.nn.tanh(tf.matmul(batch['x'], weights / sigma)), batch)


def layer_norm(batch, training):
    del training
    units = layer(batch['x'], 4)
    mean, variance = tf.nn.moments(units, [-1], keep_dims=True)
    units = (units - mean) * tf.math.rsqrt(variance + 1e-3)
    return error(tf.square(units * tf.get_variable('gamma', [4]) + tf.get_variable('beta', [4])),
                 batch)


def in_half_precision(batch, training):
    del training
    weights = tf.Variable(tf.ones([FEATURES, 3], tf.float16), name='weights', dtype=tf.float16)
    units = tf.matmul(tf.cast(batch['x'], tf.float16), weights)
    return error(tf.cast(units, tf.float32), batch)


def by_a_known_batch_size(batch, training):
    del training
    size = batch['x'].get_shape().as_list()[0]
    units = tf.reshape(layer(batch['x'], 4), [size, 2, 2])
    return error(tf.matmul(units, tf.ones([size, 2, 1]))[:, :, 0], batch)


MODELS = [
    decay_over_trainable_variables, decay_over_trainable_variables_of_a_scope,
    decay_over_a_collection_of_a_scope, decay_over_global_variables, decay_over_a_layer,
    decay_over_a_collection_of_its_own, decay_over_collections_of_get_variable, decay_over_a_scope,
    losses_in_a_collection, losses_in_a_collection_of_its_own, losses_of_a_tower,
    total_of_what_is_in_the_loss,
    average_of_the_loss, averages_of_the_variables,
    gradient_penalty, step_within_the_loss, gradients_of_inputs,
    state_by_get_variable, state_by_variable,
    keras_functional, keras_sequential, keras_subclass, keras_regularizers,
    branch_on_the_batch, loop, mapped, scanned, custom_gradient, straight_through,
    in_name_scopes, siamese, template, auxiliary_head, target_network, adversaries,
    noise_contrastive, sampled_softmax, clipped_rows,
    spectral_norm, layer_norm, in_half_precision, by_a_known_batch_size]


# Starts from a checkpoint that has `old/kernel` and `old/bias`.

def start_of_a_scope(batch, path):
    loss, metrics = two_layers(batch)
    tf.train.init_from_checkpoint(path, {'old/': 'first/'})
    return loss, metrics


def start_of_variables(batch, path):
    loss, metrics = two_layers(batch)
    first = {variable.op.name.split('/')[-1]: variable
             for variable in tf.trainable_variables('first')}
    tf.train.init_from_checkpoint(path, {f'old/{name}': first[name] for name in first})
    return loss, metrics


def start_of_names(batch, path):
    """As BERT does."""
    loss, metrics = two_layers(batch)
    known = {name for name, _ in tf.train.list_variables(path)}
    names = [re.match('^(.*):\\d+$', variable.name)[1] for variable in tf.trainable_variables()]
    tf.train.init_from_checkpoint(path, {
        name.replace('first', 'old'): name for name in names
        if name.replace('first', 'old') in known})
    return loss, metrics


STARTS = [start_of_a_scope, start_of_variables, start_of_names]


# Optimizers.

class ClipsInCompute(tf.train.GradientDescentOptimizer):
    """Clips where gradients are computed."""

    def compute_gradients(self, *args, **kwargs):
        """Returns pairs of gradients and variables."""
        pairs = super().compute_gradients(*args, **kwargs)
        clipped, _ = tf.clip_by_global_norm([gradient for gradient, _ in pairs], 0.05)
        return [(gradient, variable) for gradient, (_, variable) in zip(clipped, pairs)]


class ClipsInApply(tf.train.GradientDescentOptimizer):
    """Clips where gradients are applied."""

    def apply_gradients(self, grads_and_vars, *args, **kwargs):
        """Returns the update."""
        return super().apply_gradients([
            (tf.clip_by_norm(gradient, 0.05), variable) for gradient, variable in grads_and_vars],
            *args, **kwargs)


class ClipsInMinimize(tf.train.GradientDescentOptimizer):
    """Clips where no scheme does: there a worker computes, and another task applies."""

    def minimize(self, loss, global_step=None, **kwargs):
        """Returns the update."""
        gradients, variables = zip(*self.compute_gradients(loss, **kwargs))
        clipped, _ = tf.clip_by_global_norm(gradients, 0.05)
        return self.apply_gradients(zip(clipped, variables), global_step)


class DoesNotCount(tf.train.GradientDescentOptimizer):
    """Leaves the global step to its caller."""

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        """Returns the update."""
        del global_step
        return super().apply_gradients(grads_and_vars, name=name)


class AdamWithDecay(tf.train.Optimizer):
    """Adam with decoupled weight decay and no bias correction, on gradients as tensors: BERT's."""

    def __init__(self, learning_rate):
        super().__init__(False, 'AdamWithDecay')
        self._learning_rate = learning_rate

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        """Returns the update; does not count the global step."""
        del global_step
        assignments = []
        for gradient, variable in grads_and_vars:
            if gradient is None:
                continue
            its_name = re.match('^(.*):\\d+$', variable.name)[1]
            m, v = (tf.get_variable(f'{its_name}/adam_{slot}', variable.shape.as_list(),
                                    tf.float32, tf.zeros_initializer(), trainable=False)
                    for slot in 'mv')
            next_m = tf.multiply(0.9, m) + tf.multiply(0.1, gradient)
            next_v = tf.multiply(0.999, v) + tf.multiply(0.001, tf.square(gradient))
            update = next_m / (tf.sqrt(next_v) + 1e-6)
            if not re.search('bias|norm', its_name):
                update += 0.1 * variable
            assignments += [variable.assign(variable - self._learning_rate * update),
                            m.assign(next_m), v.assign(next_v)]
        return tf.group(*assignments, name=name)


class Wrapper(tf.train.Optimizer):
    """An optimizer around another one."""

    def __init__(self, optimizer):
        super().__init__(False, type(self).__name__)
        self._optimizer = optimizer

    def compute_gradients(self, *args, **kwargs):
        """Returns pairs of gradients and variables."""
        return self._optimizer.compute_gradients(*args, **kwargs)

    def apply_gradients(self, *args, **kwargs):
        """Returns the update."""
        return self._optimizer.apply_gradients(*args, **kwargs)


class LossScale(Wrapper):
    """Computes gradients of a large loss, as float16 needs, and makes them small again."""

    def __init__(self, optimizer, scale):
        super().__init__(optimizer)
        self._scale = scale

    def compute_gradients(self, loss, *args, **kwargs):
        """Returns pairs of gradients and variables."""
        pairs = super().compute_gradients(loss * self._scale, *args, **kwargs)
        return [(gradient / self._scale, variable) for gradient, variable in pairs]


class Averages(Wrapper):
    """Keeps moving averages of what another optimizer trains."""

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        """Returns the update."""
        pairs = list(grads_and_vars)
        update = super().apply_gradients(pairs, global_step=global_step, name=name)
        with tf.control_dependencies([update]):
            return tf.train.ExponentialMovingAverage(0.9).apply([each for _, each in pairs])


def loss_scale(learning_rate):
    return LossScale(tf.train.GradientDescentOptimizer(1e6 * learning_rate), 2. ** 16)


def averages(learning_rate):
    return Averages(tf.train.MomentumOptimizer(learning_rate, 0.9))


OPTIMIZERS = [  # each with the model that it trains
    (ClipsInCompute, two_layers), (ClipsInCompute, rows_and_a_layer), (ClipsInApply, two_layers),
    (DoesNotCount, two_layers), (AdamWithDecay, two_layers), (AdamWithDecay, rows_and_a_layer),
    (loss_scale, half_precise), (averages, two_layers)]
