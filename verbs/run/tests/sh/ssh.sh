# sshd, and its clients, of this user: ssh.sh serve|ask FOLDER SERVER PORT
set -e
PATH=$PATH:/usr/sbin
folder=$2 server=$3 port=$4
case $1 in
serve)
    ssh-keygen -q -t ed25519 -N '' -f "$folder/host"
    ssh-keygen -q -t ed25519 -N '' -f "$folder/user"
    if [ "$(id -u)" = 0 ]; then
        mkdir -p /run/sshd
    fi
    # sshd starts itself again, by its full path.
    exec "$(command -v sshd)" -D -e -f /dev/null -p "$port" -h "$folder/host" -o ListenAddress="$server" -o PidFile=none -o UsePAM=no \
        -o StrictModes=no -o AuthorizedKeysFile="$folder/user.pub" -o PermitRootLogin=prohibit-password -o Subsystem="sftp internal-sftp"
    ;;
ask)
    options="-F /dev/null -i $folder/user -o IdentitiesOnly=yes -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
    ssh $options -p "$port" "$server" 'echo from $SSH_CONNECTION'
    ssh $options -tt -p "$port" "$server" 'tty; stty size'
    head -c 3000000 /dev/urandom > "$folder/file"
    scp -q $options -P "$port" "$folder/file" "$server:$folder/scp"
    cmp "$folder/file" "$folder/scp"
    rsync -e "ssh $options -p $port" "$server:$folder/file" "$folder/rsync"
    cmp "$folder/file" "$folder/rsync"
    ssh $options -p "$port" "$server" cat < "$folder/file" | cmp - "$folder/file"
    echo copied
    ;;
esac
