package cli

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"os/user"
	"path/filepath"
	"strings"

	"lockstep/internal/config"
)

// Names of files that init writes.
const (
	composeFile = "compose.yaml"
	unitFile    = "lockstep.service"
)

// setupFile is a file that init writes.
type setupFile struct {
	name    string
	content string
	secret  bool // readable by this user only; an existing one is kept whatever it contains
}

// files returns what to write, lockstep.yaml last.
func (s *setup) files() ([]setupFile, error) {
	files := []setupFile{{"api-token", randomHex() + "\n", true}}
	settings := fmt.Sprintf("# Settings of lockstep serve, written by lockstep init. All settings: docs/configuration.md.\n"+
		"redis: %s\nroot: repos\nspool: spool\nlisten: %s\napi-token-file: api-token\n", yamlText(s.redis), yamlText(s.listen))
	if s.forge != noForge {
		settings += "hooks: hooks\n"
		at := filepath.Join("hooks", s.forge)
		files = append(files, setupFile{filepath.Join(at, "forge"), s.forge + "\n", false}, setupFile{filepath.Join(at, "secret"), randomHex() + "\n", true})
	}
	if s.notifyURL != "" {
		settings += "credentials: credentials\n"
		if host := privateHost(s.notifyURL); host != "" {
			settings += "notify-hosts: [" + yamlText(host) + "] # other hosts are refused\n"
		}
		at := filepath.Join("credentials", s.app)
		files = append(files, setupFile{filepath.Join(at, "signingSecret"), "whsec_" + base64.StdEncoding.EncodeToString(randomBytes()) + "\n", true},
			setupFile{filepath.Join(at, "urls"), s.notifyURL + "\n", false})
	}
	switch s.service {
	case serviceCompose:
		text, err := s.compose()
		if err != nil {
			return nil, err
		}
		files = append(files, setupFile{composeFile, text, false})
	case serviceSystemd:
		text, err := s.unit()
		if err != nil {
			return nil, err
		}
		files = append(files, setupFile{unitFile, text, false})
	}
	return append(files, setupFile{config.DefaultFile, settings, false}), nil
}

// privateHost returns the host of a URL that notifiers refuse unless the settings list it, or "".
func privateHost(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return ""
	}
	if ip := net.ParseIP(u.Hostname()); u.Hostname() == "localhost" || ip != nil && (ip.IsLoopback() || ip.IsPrivate()) {
		return u.Host
	}
	return ""
}

// yamlText quotes a string for YAML.
func yamlText(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }

func randomBytes() []byte {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails
	return b
}

func randomHex() string { return hex.EncodeToString(randomBytes()) }

// compose returns a Compose file that runs one process as this user, so that it can read the secrets and write the trees.
func (s *setup) compose() (string, error) {
	host, port, err := net.SplitHostPort(s.listen)
	if err != nil {
		return "", err
	}
	published := net.JoinHostPort(host, port) + ":" + port
	switch {
	case host == "":
		published = port + ":" + port
	case host == "localhost":
		published = "127.0.0.1:" + port + ":" + port
	case net.ParseIP(host) == nil:
		return "", fmt.Errorf("--listen %s: with --service compose, want an IP address or only a port, as in :8080", s.listen)
	}
	return fmt.Sprintf(`# Lockstep and Redis, written by lockstep init. Start them with: docker compose up --detach
name: lockstep

services:
  redis:
    image: redis:7
    restart: unless-stopped
    command: [redis-server, --appendonly, "yes", --appendfsync, always, --maxmemory-policy, noeviction]
    volumes:
      - redis:/data

  lockstep:
    image: %s
    restart: unless-stopped
    stop_grace_period: 45s
    user: "%d:%d"
    read_only: true
    cap_drop: [ALL]
    security_opt: ["no-new-privileges:true"]
    working_dir: /deployment
    environment:
      LOCKSTEP_REDIS: redis://redis:6379
      LOCKSTEP_LISTEN: ":%s"
      LOCKSTEP_ROOT: repos
      LOCKSTEP_SPOOL: spool
    volumes:
      - .:/deployment
    ports:
      - %s
    depends_on: [redis]

volumes:
  redis:
`, yamlText(s.image), os.Getuid(), os.Getgid(), port, yamlText(published)), nil
}

// unit returns a systemd unit that runs the service as this user, in the folder of lockstep.yaml.
func (s *setup) unit() (string, error) {
	me, err := user.Current()
	if err != nil {
		return "", fmt.Errorf("the user for the unit: %w", err)
	}
	if strings.ContainsAny(s.dir+s.binary, " %\"\\'$\n") {
		return "", fmt.Errorf("--service systemd: %s and %s must not contain spaces, quotes, %% or $", s.dir, s.binary)
	}
	return fmt.Sprintf(`# Written by lockstep init. deploy/systemd/lockstep.service has a stricter unit, for a user of its own.
[Unit]
Description=Lockstep, which keeps shared Git clones in step with their remotes
Wants=network-online.target
After=network-online.target redis-server.service
StartLimitIntervalSec=0

[Service]
Type=notify
ExecStart=%s serve
WorkingDirectory=%s
User=%s
TimeoutStartSec=infinity
TimeoutStopSec=45s
WatchdogSec=60s
Restart=on-failure
RestartSec=2s
# Exit code 2 means invalid settings.
RestartPreventExitStatus=2
Environment=GOTRACEBACK=crash
LimitCORE=0
LimitNOFILE=65536
UMask=0022
ProtectSystem=strict
ReadWritePaths=%s
PrivateTmp=yes
NoNewPrivileges=yes

[Install]
WantedBy=multi-user.target
`, s.binary, s.dir, me.Username, s.dir), nil
}

// writeFiles writes the files that do not exist and prints what it did. If an existing file that is not a secret differs, it writes
// nothing and returns an error.
func writeFiles(w io.Writer, dir string, files []setupFile) error {
	var missing []setupFile
	var kept []string
	for _, f := range files {
		path := filepath.Join(dir, f.name)
		content, err := os.ReadFile(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			missing = append(missing, f)
		case err != nil:
			return err
		case !f.secret && !bytes.Equal(content, []byte(f.content)):
			return fmt.Errorf("%s exists and differs from what these answers give; nothing was written: edit it, remove it, or choose another folder with --dir", path)
		default:
			kept = append(kept, f.name)
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var written []string
	for _, f := range missing {
		if err := writeNew(filepath.Join(dir, f.name), f); err != nil {
			return err
		}
		written = append(written, f.name)
	}
	if len(written) > 0 {
		fmt.Fprintf(w, "written in %s: %s\n", dir, strings.Join(written, ", "))
	}
	if len(kept) > 0 {
		fmt.Fprintf(w, "unchanged in %s: %s\n", dir, strings.Join(kept, ", "))
	}
	for _, folder := range []string{"repos", "spool"} { // else Docker creates them, as root
		if err := os.MkdirAll(filepath.Join(dir, folder), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// writeNew creates a file, and fails if it exists. Folders of secrets are private.
func writeNew(path string, f setupFile) (err error) {
	perm, folder := os.FileMode(0o644), os.FileMode(0o755)
	if filepath.Dir(f.name) != "." {
		perm, folder = 0o600, 0o700
	}
	if f.secret {
		perm = 0o600
	}
	if err := os.MkdirAll(filepath.Dir(path), folder); err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return err
	}
	_, err = file.WriteString(f.content)
	if err = errors.Join(err, file.Close()); err != nil {
		_ = os.Remove(path) // a later run would keep an incomplete secret
	}
	return err
}
