package wire

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
	"golang.org/x/sys/unix"
)

const (
	maxKnownContents = 1000 // contents of known_hosts that are remembered
	maxSkippedLines  = 20   // numbers of skipped lines in a log record
)

// knownLines are the lines of a known_hosts file, and what to call it.
type knownLines struct{ where, content string }

// knownCache keeps the lines in use of each content of known_hosts, so that a content is checked, and logged,
// once. The zero value is empty. It is safe for concurrent use.
type knownCache struct {
	mu     sync.Mutex
	usable map[[sha256.Size]byte]usable
}

// usable are lines that package knownhosts can parse. Those of authorities are apart, because the package would accept
// their keys as a host's own. Both have the @revoked lines.
type usable struct{ keys, authorities string }

// parse parses all lines that can be used and logs the numbers of the others. A line that cannot be parsed
// trusts no key, so skipping it makes no more keys trusted. The exception is a @revoked line, see
// [revokedLine].
func (c *knownCache) parse(log *slog.Logger, where string, files ...knownLines) (k hostKeys, err error) {
	var keys, authorities strings.Builder
	for _, file := range files {
		lines, err := c.usableLines(log, file)
		if err != nil {
			return hostKeys{}, err
		}
		keys.WriteString(lines.keys)
		authorities.WriteString(lines.authorities)
	}
	k.where = where
	if k.keys, err = parseKnownHosts(keys.String()); err == nil {
		k.authorities, err = parseKnownHosts(authorities.String())
	}
	return k, err
}

func (c *knownCache) usableLines(log *slog.Logger, file knownLines) (usable, error) {
	sum := sha256.Sum256([]byte(file.where + "\x00" + file.content))
	c.mu.Lock()
	defer c.mu.Unlock()
	if lines, ok := c.usable[sum]; ok {
		return lines, nil
	}
	lines, skipped, err := usableLines(file)
	if err != nil {
		return usable{}, err
	}
	if len(skipped) > 0 {
		log.Warn("known_hosts lines skipped: they are not valid",
			"file", file.where, "lines", skipped[:min(len(skipped), maxSkippedLines)], "skipped", len(skipped))
	}
	if c.usable == nil || len(c.usable) >= maxKnownContents {
		c.usable = map[[sha256.Size]byte]usable{}
	}
	c.usable[sum] = lines
	return lines, nil
}

// usableLines returns the lines that can be used, and the numbers of the others.
func usableLines(file knownLines) (_ usable, skipped []int, err error) {
	var keys, authorities strings.Builder
	number := 0
	content := strings.TrimPrefix(file.content, "\ufeff") // editors of Windows write the mark
	content = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(content)
	for line := range strings.SplitSeq(content, "\n") {
		number++
		line = strings.Trim(line, " \t")
		if line == "" || line[0] == '#' {
			continue
		}
		_, err := parseKnownHosts(line)
		if _, ok := errors.AsType[syscall.Errno](err); ok {
			return usable{}, nil, err // out of file descriptors or memory
		}
		if err != nil && strings.Contains(strings.ToLower(line), "@revoked") {
			if line, err = revokedLine(line); err != nil {
				return usable{}, nil, fmt.Errorf("line %d of %s revokes a key that cannot be read", number, file.where)
			}
		} else if err != nil {
			line = ""
		}
		if line == "" {
			skipped = append(skipped, number)
			continue
		}
		isAuthority := strings.HasPrefix(line, "@cert-authority")
		if !isAuthority {
			keys.WriteString(line + "\n")
		}
		if isAuthority || strings.HasPrefix(line, "@revoked") {
			authorities.WriteString(line + "\n")
		}
	}
	return usable{keys.String(), authorities.String()}, skipped, nil
}

// revokedLine returns valid lines for a @revoked line that cannot be parsed, so that each readable key in it
// stays revoked. It returns "" if no server can present the keys to us because their type is unknown, and an
// error if the line has no readable key.
func revokedLine(line string) (string, error) {
	err := errors.New("no key")
	isUnknown := false
	var lines []string
	for word := range strings.FieldsSeq(line) {
		blob, base64Err := base64.StdEncoding.DecodeString(word)
		if base64Err != nil || !bytes.HasPrefix(blob, []byte{0, 0}) { // the length of the key's type
			continue
		}
		key, keyErr := ssh.ParsePublicKey(blob)
		switch {
		case keyErr == nil:
			lines = append(lines, "@revoked * "+strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key))))
		case strings.Contains(keyErr.Error(), "unknown key algorithm"): // package ssh has no error type for it
			isUnknown = true
		default:
			err = keyErr
		}
	}
	if len(lines) > 0 || isUnknown {
		return strings.Join(lines, "\n"), nil
	}
	return "", err
}

// parseKnownHosts parses lines through a file in memory, since package knownhosts reads only files.
func parseKnownHosts(lines string) (ssh.HostKeyCallback, error) {
	fd, err := unix.MemfdCreate("known_hosts", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "known_hosts")
	defer file.Close()
	if _, err := file.WriteString(lines); err != nil {
		return nil, err
	}
	return knownhosts.New(fmt.Sprintf("/proc/self/fd/%d", fd))
}
