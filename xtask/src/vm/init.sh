#!/bin/busybox sh
# First process of the guest of `cargo xtask vm-test`: makes a small system that has what a
# systemd machine with cgroup v2 has, runs every test program in it as root and as an ordinary
# user, prints the outcome on the console, and ends the machine.

# --- The kernel starts in a file system that pivot_root refuses to leave, so no box could be made there, and
# --- older kernels can't map owners on a tmpfs. Continue on a disk as ordinary machines have it, in memory.
if [ "$1" != on-disk ]; then
    b=/bin/busybox
    $b mkdir -p /dev /disk
    $b mount -t devtmpfs devtmpfs /dev
    # Guests of its own are kept there, where it has any.
    size=393216
    [ ! -e /usr ] || size=1048576
    [ ! -e /bin/real-firecracker ] || size=1572864
    $b insmod /modules/brd.ko rd_nr=1 rd_size=$size
    $b mke2fs -I 256 /dev/ram0 >/dev/null
    $b mount -t ext4 /dev/ram0 /disk || echo "VM-ERROR: no disk"
    $b umount /dev
    $b cp -a /bin /tests /modules /init /disk/
    [ ! -e /usr ] || $b cp -a /usr /disk/
    exec $b switch_root /disk /init on-disk
fi

export PATH=/bin
/bin/busybox --install -s /bin
CGROUPS=/sys/fs/cgroup
CONTROLLERS='+cpu +memory +pids'
passed=0
failed=0
# Which one there is: its tests are others.
firecracker=stand-in
[ ! -e /bin/real-firecracker ] || firecracker=real

# Whatever goes wrong: say so and end, never hang.
give_up() {
    echo "VM-ERROR: $1"
    dmesg | tail -n 40
    reboot -f
}

mount_all() {
    mkdir -p /proc /sys /dev /tmp /run /var/tmp /etc /home /root
    chmod 1777 /var/tmp
    chmod 700 /root
    mount -t proc proc /proc &&
        mount -t sysfs sysfs /sys &&
        mount -t devtmpfs devtmpfs /dev &&
        mkdir -p /dev/pts /dev/shm &&
        mount -t devpts -o ptmxmode=666 devpts /dev/pts &&
        mount -t tmpfs -o mode=1777 tmpfs /dev/shm &&
        mount -t tmpfs -o mode=1777 tmpfs /tmp &&
        mount -t tmpfs -o mode=755 tmpfs /run &&
        mount -t securityfs securityfs /sys/kernel/security &&
        mount -t cgroup2 cgroup2 $CGROUPS || give_up "a file system can't be mounted"
    ln -sf /proc/self/fd /dev/fd
    insmod /modules/overlay.ko || give_up "overlayfs can't be loaded"
    ip link set lo up
}

add_users() {
    printf '%s\n' 'root:x:0:0:root:/root:/bin/sh' 'user:x:1000:1000:user:/home/user:/bin/sh' \
        'nobody:x:65534:65534:nobody:/:/bin/sh' >/etc/passwd
    printf '%s\n' 'root:x:0:' 'user:x:1000:' 'kvm:x:104:user' 'nogroup:x:65534:' >/etc/group
    mkdir -p /home/user
    chown 1000:1000 /home/user
}

# As udev has it on Debian: whoever is in the group may use it.
offer_kvm() {
    for module in /modules/kvm/*; do
        insmod "$module" || give_up "KVM can't be had: $module"
    done
    [ -c /dev/kvm ] || give_up "KVM can't be had: no /dev/kvm"
    chgrp kvm /dev/kvm && chmod 660 /dev/kvm || give_up "KVM can't be offered"
    [ $firecracker = stand-in ] || mv /bin/real-firecracker /bin/firecracker
    mkdir -p /usr/local/bin && mv /bin/firecracker /usr/local/bin/ || give_up "no Firecracker, and nothing that stands in for it"
}

# make_cgroup PATH: a group whose children have every controller.
make_cgroup() {
    mkdir "$CGROUPS/$1" && echo "$CONTROLLERS" >"$CGROUPS/$1/cgroup.subtree_control"
}

# become WHO VARIABLE=VALUE… COMMAND…: nothing else is in the command's environment. Debian's busybox
# has no setuidgid, but its `su` takes any program for a shell.
become() {
    local who=$1
    shift
    su -p -s /bin/env "$who" -- -i PATH=/bin "$@"
}

# The tree systemd makes: root's session in a scope of its own; below user@1000.service all belongs
# to the user, whose shell is in a leaf made by their own service manager.
make_cgroups() {
    echo "$CONTROLLERS" >$CGROUPS/cgroup.subtree_control
    local service=user.slice/user-1000.slice/user@1000.service
    make_cgroup user.slice &&
        make_cgroup user.slice/user-0.slice &&
        mkdir $CGROUPS/user.slice/user-0.slice/session-1.scope &&
        make_cgroup user.slice/user-1000.slice &&
        mkdir $CGROUPS/$service &&
        chown 1000:1000 $CGROUPS/$service || give_up "cgroups can't be made"
    # The kernel lists which files a delegation hands over.
    while read -r file; do
        [ ! -e "$CGROUPS/$service/$file" ] || chown 1000:1000 "$CGROUPS/$service/$file"
    done </sys/kernel/cgroup/delegate
    become user sh -c "
        echo '$CONTROLLERS' >$CGROUPS/$service/cgroup.subtree_control &&
        mkdir $CGROUPS/$service/app.slice &&
        echo '$CONTROLLERS' >$CGROUPS/$service/app.slice/cgroup.subtree_control &&
        mkdir $CGROUPS/$service/app.slice/shell.scope
    " || give_up "the user can't use the delegated cgroup"
    root_leaf=$CGROUPS/user.slice/user-0.slice/session-1.scope
    user_leaf=$CGROUPS/$service/app.slice/shell.scope
}

# in_session WHO COMMAND…: as that user, in that user's cgroup, home and a clean environment.
in_session() {
    local who=$1 leaf home
    shift
    case $who in
        root) leaf=$root_leaf home=/root ;;
        user) leaf=$user_leaf home=/home/user ;;
    esac
    (
        echo 0 >"$leaf/cgroup.procs" || exit 1
        cd "$home" || exit 1
        become "$who" HOME="$home" USER="$who" TERM=dumb RUST_BACKTRACE=1 \
            BELLJAR_BIN=/bin/belljar BELLJAR_PROBE=/bin/probe BELLJAR_EXPECT_LIMITS='cgroup v2' \
            BELLJAR_FIRECRACKER_IS=$firecracker "$@"
    )
}

# count WORD FILE: the sum of `N WORD` over libtest's result lines.
count() {
    sed -n "s/^test result: .* \([0-9]*\) $1;.*/\1/p" "$2" | awk '{ sum += $1 } END { print sum + 0 }'
}

run_tests() {
    local program=$1 name who options code good bad
    name=$(basename "$program")
    for who in root user; do
        echo "VM-RUN: $name as $who"
        # One at a time: a limit test measures the machine, and this one is small.
        # gVisor and what images are made of are not in this guest: on the host their tests run with cgroups of version 1 and none.
        options='--test-threads=1 --skip gvisor:: --skip container:: --skip microvm::'
        # Root plays both halves of belljar's tests, so it also shows a user without a delegated cgroup.
        [ "$who" = root ] || options="$options --skip as_root::"
        # shellcheck disable=SC2086 # several words
        { in_session "$who" "$program" $options 2>&1; echo $? >/run/code; } | tee /run/log
        code=$(cat /run/code)
        good=$(count passed /run/log)
        bad=$(count failed /run/log)
        # A program that died without a result has failed too.
        [ "$code" = 0 ] || [ "$bad" != 0 ] || bad=1
        passed=$((passed + good))
        failed=$((failed + bad))
        echo "VM-DONE: $name as $who: $good passed, $bad failed"
    done
}

mount_all
add_users
# QEMU is there for those tests alone.
[ ! -e /usr ] || offer_kvm
make_cgroups
echo "VM-KERNEL: Linux $(uname -r), security modules $(cat /sys/kernel/security/lsm)"
for program in /tests/*; do
    run_tests "$program"
done
[ "$failed" = 0 ] || dmesg | tail -n 100
echo "VM-RESULT: $passed passed, $failed failed"
reboot -f
