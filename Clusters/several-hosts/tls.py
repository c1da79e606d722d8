"""Lets only TLS pass between the hosts of a run, with certificates for this run.

    python tls.py certificates ~/tls $hosts    makes the run's CA, and a certificate for each host
    python tls.py tunnels ~/tls $hosts         writes the other files that each host needs

$hosts are the flags that the tasks would get, such as --ps_hosts=alpha:2222
--worker_hosts=beta:2222,gamma:2222. Without them the cluster is read from TF_CONFIG. At these
addresses stunnel will listen. Each task has a local port, with the same number on all hosts: on its
own host the task listens there, and on the others a tunnel to that host begins there. With
--sockets_port the workers have one port more each, for the ring of Ring-AllReduce.

The CA's key stays in ~/tls. Each directory in ~/tls/hosts is for the host of that name.
"""

import argparse
import getpass
import ipaddress
import json
import os
import pathlib
import re
import secrets
import shutil
import subprocess
import sys
import tempfile

JOBS = 'ps', 'worker', 'chief'
RING = 'ring'  # of the second ports of workers
# From one address, to all tunnels of a host. A worker has one connection to each task that it uses,
# and makes one or two more in a second, to ask whether that answers: so these are for 100 workers.
_MOST_OPEN, _MOST_NEW = 1000, 200
_OPENSSL = """
[req]
distinguished_name = subject
[subject]
[ca]
basicConstraints = critical, CA:TRUE, pathlen:0
keyUsage = critical, keyCertSign
subjectKeyIdentifier = hash
[host]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
subjectAltName = {kind}:{host}
"""
# A peer without a certificate of this run's CA exchanges no byte with a task.
_STUNNEL = """\
; The tunnels of host {host}. In this directory: stunnel stunnel.conf
foreground = yes
pid =
debug = warning
syslog = no
; A quiet connection to a host that lost its power ends after 25 s.
socket = l:SO_KEEPALIVE=1
socket = l:TCP_KEEPIDLE=10
socket = l:TCP_KEEPINTVL=5
socket = l:TCP_KEEPCNT=3
socket = l:TCP_NODELAY=1
socket = r:SO_KEEPALIVE=1
socket = r:TCP_KEEPIDLE=10
socket = r:TCP_KEEPINTVL=5
socket = r:TCP_KEEPCNT=3
socket = r:TCP_NODELAY=1

; Of each service below.
CAfile = ca.pem
cert = cert.pem
key = key.pem
requireCert = yes
verifyChain = yes
sessionResume = no
sslVersionMin = TLSv1.2
ciphers = ECDHE+AESGCM:ECDHE+CHACHA20
ciphersuites = TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256
; Who says nothing in a handshake is gone after 5 s. A tunnel is never cut for being quiet: that
; is the longest time that stunnel can wait.
TIMEOUTbusy = 5
TIMEOUTidle = 2000000
"""
_OWN = """
[{name}]
accept = {port}
connect = 127.0.0.1:{local}
"""
_REMOTE = """
[to-{name}]
client = yes
accept = 127.0.0.1:{local}
connect = {host}:{port}
delay = yes
{check} = {host}
"""
_FIREWALL = """\
#!/usr/sbin/nft -f
# Host {host}: its tasks and its ends of the tunnels are for this host alone, and here for {user}
# alone. From each address {most} connections to stunnel are let in, {new} in a second.
# `nft delete table inet {table}` takes it away again.

table inet {table}
delete table inet {table}

table inet {table} {{
  set held {{ type ipv4_addr; flags dynamic; size 65535; }}
  set held6 {{ type ipv6_addr; flags dynamic; size 65535; }}
  set begun {{ type ipv4_addr; flags dynamic,timeout; timeout 1m; size 65535; }}
  set begun6 {{ type ipv6_addr; flags dynamic,timeout; timeout 1m; size 65535; }}
  chain input {{
    type filter hook input priority filter; policy accept;
    iif lo accept
    tcp dport {ports} drop
    tcp dport != {{ {tunnels} }} accept
    ct state != new accept
    update @begun {{ ip saddr limit rate over {new}/second burst {most} packets }} drop
    update @begun6 {{ ip6 saddr limit rate over {new}/second burst {most} packets }} drop
    add @held {{ ip saddr ct count over {most} }} drop
    add @held6 {{ ip6 saddr ct count over {most} }} drop
  }}
  chain output {{
    type filter hook output priority filter; policy accept;
    oif lo tcp dport {ports} meta skuid != "{user}" drop
  }}
}}
"""
# All traffic of the tasks stays within the host.
_ENVIRONMENT = """\
export TF_CONFIG='{config}'
export no_proxy="127.0.0.1${{no_proxy:+,$no_proxy}}"
"""


def fail(line):
    """Ends this process with a line, a string, on stderr and status 1."""
    sys.exit(f'tls.py: {line}')


def split(address):
    """Returns the host and the port, an int, of an address; ends the program if it has none."""
    # Strict, since these go into the configurations of other programs.
    match = re.fullmatch(r'(\w(?:[\w.-]*\w)?):(\d{1,5})', str(address), re.ASCII)
    if not match or not 0 < int(match[2]) < 65536:
        fail(f'"{address}" is not of the form host:port')
    return match[1], int(match[2])


class Task:
    """A task of the run.

    Attributes:
      job: string.
      index: int.
      name: string, both, such as ps-0.
      host: string.
      port: int, where stunnel listens on that host.
    """

    def __init__(self, job, index, address):
        if not re.fullmatch('[a-z]+', job):
            fail(f'"{job}" is no job')
        self.job, self.index, self.name = job, index, f'{job}-{index}'
        self.host, self.port = split(address)


def tasks(options):
    """Returns the `Task`s of the run, by the flags or by TF_CONFIG; ends the program if none."""
    cluster = {job: getattr(options, f'{job}_hosts').split(',') for job in JOBS
               if getattr(options, f'{job}_hosts')}
    if cluster and os.environ.get('TF_CONFIG'):
        fail('the cluster is given twice: by TF_CONFIG and by flags. Unset TF_CONFIG, or leave out '
             'the flags.')
    if not cluster:
        try:
            cluster = {job: list(addresses) for job, addresses in
                       json.loads(os.environ.get('TF_CONFIG') or '{}')['cluster'].items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            fail('no cluster is given: there are neither flags such as --ps_hosts nor a TF_CONFIG '
                 'that has one.')
    found = [Task(job, index, address) for job, addresses in cluster.items()
             for index, address in enumerate(addresses)]
    if options.sockets_port:
        found += [Task(RING, task.index, f'{task.host}:{options.sockets_port + task.index}')
                  for task in found if task.job == 'worker']
    addresses = [(task.host, task.port) for task in found]
    for task in found:
        if addresses.count((task.host, task.port)) > 1:
            fail(f'{task.host}:{task.port} appears twice')
    return found


def by_host(run):
    """Returns a dict of lists, the tasks of each host, for a list of `Task`s."""
    return {host: [task for task in run if task.host == host]
            for host in dict.fromkeys(task.host for task in run)}


def openssl(*words, text=''):
    """Runs the command openssl with a text on its stdin; returns what it prints."""
    try:
        done = subprocess.run(['openssl', *words], input=text, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, universal_newlines=True, check=False)
    except FileNotFoundError:
        fail('there is no openssl')
    if done.returncode:
        fail(f'openssl {words[0]}: {" ".join(done.stderr.split())}')
    return done.stdout


def kind_of(host):
    """Returns what a host's name is: 'IP' or 'DNS'."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return 'DNS'
    return 'IP'


def make_authority(directory, days):
    """Makes a CA's key and certificate.

    Args:
      directory: `pathlib.Path`, which exists; they will be in its directory ca.
      days: int, how long the certificate is valid.
    """
    own = directory / 'ca'
    own.mkdir()
    _make_key('CA of one run', own, own, '-x509', '-extensions', 'ca', '-days', str(days),
              '-out', str(own / 'ca.pem'))


def certify(directory, host, days):
    """Makes a key and a certificate for a host.

    Args:
      directory: `pathlib.Path`, in which the CA is; they will be in its directory hosts.
      host: string.
      days: int, how long the certificate is valid.
    """
    own, place = directory / 'ca', directory / 'hosts' / host
    place.mkdir(parents=True)
    shutil.copyfile(str(own / 'ca.pem'), str(place / 'ca.pem'))
    request = _make_key(host[:64], own, place, host=host)
    openssl('x509', '-req', '-CA', str(own / 'ca.pem'), '-CAkey', str(own / 'key.pem'),
            '-set_serial', str(1 + secrets.randbits(120)), '-days', str(days),
            '-extfile', str(own / 'openssl.conf'), '-extensions', 'host',
            '-out', str(place / 'cert.pem'), text=request)


def _make_key(name, own, place, *words, host='none'):
    """Makes a key; returns what openssl prints, a request for a certificate.

    Args:
      name: string, the owner of the key.
      own: `pathlib.Path`, the directory of the CA.
      place: `pathlib.Path`, the directory for the key.
      *words: strings, further arguments of the command.
      host: string.
    """
    config = own / 'openssl.conf'
    config.write_text(_OPENSSL.format(kind=kind_of(host), host=host), encoding='utf-8')
    return openssl('req', '-new', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1',
                   '-nodes', '-config', str(config), '-subj', f'/CN={name}',
                   '-keyout', str(place / 'key.pem'), *words)


def certificates(directory, hosts, days):
    """Makes a CA and a certificate for each host; if that fails, it leaves nothing.

    Args:
      directory: `pathlib.Path`, which does not exist yet.
      hosts: strings.
      days: int, how long the certificates are valid.
    """
    if directory.exists():
        fail(f'{directory} is there already. A run has a CA of its own: give another directory, or '
             'delete this one.')
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=str(directory.parent)) as partial:
        whole = pathlib.Path(partial) / 'whole'
        whole.mkdir()
        make_authority(whole, days)
        for host in hosts:
            certify(whole, host, days)
        whole.rename(directory)
    until = openssl('x509', '-in', str(directory / 'ca' / 'ca.pem'), '-noout', '-enddate')
    print(f'{directory}: a CA, and certificates for {", ".join(hosts)}, good until '
          f'{until.strip().partition("=")[2]}')


def tunnels(directory, run, first, user):
    """Writes the files that each host needs beside its certificate.

    Args:
      directory: `pathlib.Path`, in which the certificates are.
      run: list of `Task`s.
      first: int, the local port of the first task; the other tasks have the ports after it.
      user: string, the account that runs the tasks on the hosts.
    """
    local = {task: first + i for i, task in enumerate(run)}
    if first + len(run) > 65536:
        fail(f'the ports from --local_port={first} on are too few: the last one is 65535')
    for task in run:
        if task.port in local.values():
            fail(f'port {task.port} is that of a tunnel on {task.host}, and one of the local ports '
                 f'from --local_port={first} on. Give another one.')
    cluster = {job: [f'127.0.0.1:{local[task]}' for task in run if task.job == job]
               for job in dict.fromkeys(task.job for task in run if task.job != RING)}
    for host, own in by_host(run).items():
        place = directory / 'hosts' / host
        if not (place / 'cert.pem').exists():
            fail(f'there is no certificate of {host} in {directory}. Run certificates for this '
                 'cluster, into another directory.')
        services = ''.join(
            (_OWN if task.host == host else _REMOTE).format(
                name=task.name, host=task.host, port=task.port, local=local[task],
                check={'IP': 'checkIP', 'DNS': 'checkHost'}[kind_of(task.host)]) for task in run)
        files = {'stunnel.conf': _STUNNEL.format(host=host) + services,
                 'firewall.nft': _FIREWALL.format(
                     host=host, user=user, table=f'tunnels_{first}',
                     ports=f'{first}-{first + len(run) - 1}',
                     tunnels=', '.join(str(task.port) for task in own),
                     most=_MOST_OPEN, new=_MOST_NEW)}
        for task in (task for task in own if task.job != RING):
            config = {'cluster': cluster, 'task': {'type': task.job, 'index': task.index}}
            files[f'{task.name}.env'] = _ENVIRONMENT.format(config=json.dumps(config))
        for old in place.glob('*.env'):  # of another cluster
            old.unlink()
        for name, text in files.items():
            (place / name).write_text(text, encoding='utf-8')
        print(f'{place}: {", ".join(files)}')
    rings = [local[task] for task in run if task.job == RING]
    if rings:
        print(f'Ring-AllReduce/worker.py: with --sockets_port={rings[0]}, on all hosts')


def main():
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.split('\n')[0])
    parser.add_argument('what', choices=['certificates', 'tunnels'])
    parser.add_argument('directory', type=pathlib.Path, help='where it is made, such as ~/tls')
    for job in JOBS:
        parser.add_argument(f'--{job}_hosts', help='as the tasks would get it')
    parser.add_argument('--days', type=int, default=30, help='of certificates: how long they are '
                        'good, from now on (default: 30)')
    parser.add_argument('--local_port', type=int, default=22000, help='of tunnels: of the first '
                        'task; the others have those after it (default: 22000)')
    parser.add_argument('--sockets_port', type=int, default=0, help='of tunnels: for Ring-'
                        'AllReduce: where stunnel listens, too, on the host of worker 0; on that '
                        'of worker i, at this port plus i')
    parser.add_argument('--user', default=getpass.getuser(), help='of tunnels: whose the tasks are '
                        'on the hosts (default: who you are here)')
    options = parser.parse_args()
    os.umask(0o077)
    if options.sockets_port and options.what != 'tunnels':
        fail('--sockets_port is a flag of tunnels')
    run = tasks(options)
    directory = options.directory.expanduser().resolve()
    for place in [directory, *directory.parents]:
        if (place / '.git').exists():
            fail(f'{place} is a git work tree, and keys do not belong into one: give another '
                 'directory')
    if not 0 < options.days <= 3650:
        fail(f'--days={options.days} is not from 1 to 3650')
    if not 0 < options.local_port < 65536:
        fail(f'--local_port={options.local_port} is no port')
    if not re.fullmatch(r'\w[\w.-]*', options.user, re.ASCII):
        fail(f'--user={options.user} is no name of a user')
    try:
        if options.what == 'certificates':
            certificates(directory, list(by_host(run)), options.days)
        else:
            tunnels(directory, run, options.local_port, options.user)
    except OSError as error:
        fail(error)


if __name__ == '__main__':
    main()
