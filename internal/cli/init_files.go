package cli

import (
	"crypto/rand"
	"embed"
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
	"text/template"
)

//go:embed init
var initFolder embed.FS

var initTemplates = template.Must(template.New("").Funcs(template.FuncMap{
	"quote": func(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }, // for YAML
}).ParseFS(initFolder, "init/*"))

// setupFile is a file that init writes.
type setupFile struct {
	name    string
	content string
	secret  bool // readable by this user only
}

// files returns what to write, lockstep.yaml last.
func (s *setup) files() ([]setupFile, error) {
	files := []setupFile{{"api-token", hex.EncodeToString(randomBytes()) + "\n", true}}
	if s.Forge != none {
		at := filepath.Join("hooks", s.Forge)
		files = append(files, setupFile{filepath.Join(at, "forge"), s.Forge + "\n", false},
			setupFile{filepath.Join(at, "secret"), hex.EncodeToString(randomBytes()) + "\n", true})
	}
	if s.NotifyURL != "" {
		at := filepath.Join("credentials", s.App)
		files = append(files, setupFile{filepath.Join(at, "signingSecret"), "whsec_" + base64.StdEncoding.EncodeToString(randomBytes()) + "\n", true},
			setupFile{filepath.Join(at, "urls"), s.NotifyURL + "\n", false})
	}
	values, err := s.values()
	if err != nil {
		return nil, err
	}
	names := map[string][]string{"compose": {"compose.yaml"}, "systemd": {"lockstep.service"}}[s.Service]
	for _, name := range append(names, "lockstep.yaml") {
		var content strings.Builder
		if err := initTemplates.ExecuteTemplate(&content, name, values); err != nil {
			return nil, err
		}
		files = append(files, setupFile{name, content.String(), false})
	}
	return files, nil
}

// values returns what the templates need.
func (s *setup) values() (any, error) {
	host, port, err := net.SplitHostPort(s.Listen)
	if err != nil {
		return nil, err
	}
	published := net.JoinHostPort(host, port) + ":" + port
	switch {
	case host == "":
		published = port + ":" + port
	case host == "localhost":
		published = "127.0.0.1:" + port + ":" + port
	case s.Service == "compose" && net.ParseIP(host) == nil:
		return nil, fmt.Errorf("--listen %s: with --service compose, want an IP address or only a port, as in :8080", s.Listen)
	}
	name := ""
	if s.Service == "systemd" {
		me, err := user.Current()
		if err != nil {
			return nil, fmt.Errorf("the user for the unit: %w", err)
		}
		if strings.ContainsAny(s.dir+s.binary, " %\"\\'$\n") {
			return nil, fmt.Errorf("--service systemd: %s and %s must not contain spaces, quotes, %% or $", s.dir, s.binary)
		}
		name = me.Username
	}
	return struct {
		*setup
		PrivateHost, Port, Published, User, Binary, Dir string
		UID, GID                                        int
	}{s, privateHost(s.NotifyURL), port, published, name, s.binary, s.dir, os.Getuid(), os.Getgid()}, nil
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

func randomBytes() []byte {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails
	return b
}

// writeFiles writes the files. If one of them exists, it writes nothing and returns an error.
func writeFiles(w io.Writer, dir string, files []setupFile) error {
	names := make([]string, len(files))
	for i, f := range files {
		names[i] = f.name
		_, err := os.Lstat(filepath.Join(dir, f.name))
		if err == nil {
			err = fmt.Errorf("%s exists; nothing was written: edit it, remove it, or choose another folder with --dir", filepath.Join(dir, f.name))
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for _, folder := range []string{"repos", "spool"} { // else Docker creates them, as root
		if err := os.MkdirAll(filepath.Join(dir, folder), 0o755); err != nil {
			return err
		}
	}
	for _, f := range files {
		if err := writeNew(filepath.Join(dir, f.name), f); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "written in %s: %s\n", dir, strings.Join(names, ", "))
	return err
}

// writeNew creates a file, and fails if it exists. Folders of secrets are private.
func writeNew(path string, f setupFile) error {
	perm := os.FileMode(0o644)
	if f.secret || filepath.Dir(f.name) != "." {
		perm = 0o600
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil { // the deployment's own folder exists
		return err
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return err
	}
	_, err = file.WriteString(f.content)
	if err = errors.Join(err, file.Close()); err != nil {
		_ = os.Remove(path)
	}
	return err
}
