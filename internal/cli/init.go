package cli

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"lockstep/internal/config"
	"lockstep/internal/credential"
	"lockstep/internal/disk"
	"lockstep/internal/forge"
	"lockstep/internal/redisx"
	"lockstep/internal/term"
	"lockstep/internal/watch"
)

// noForge is the answer for deployments without webhooks.
const noForge = "none"

// Files that run the service.
const (
	serviceCompose = "compose"
	serviceSystemd = "systemd"
	serviceNone    = "none"
)

// setup has the answers given to lockstep init.
type setup struct {
	dir                    string
	redis, listen          string
	forge, url             string // kind of forge, and the URL of the receiver as the forge reaches it
	app, notifyURL         string
	service, image, binary string
}

func newInitCommand(std term.Streams) *cobra.Command {
	var s setup
	var check, yes bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Write the settings and secrets of a new deployment",
		Long: "Write lockstep.yaml, new secrets that only this user can read and, with --service, a file that runs the service, and\n" +
			"print the values for the forge's webhook form. On a terminal it prompts for values that no flag sets. It changes no\n" +
			"existing file: it keeps secrets, and if another file differs, it writes nothing. All paths in lockstep.yaml are\n" +
			"relative to its folder: run lockstep there.\n\n" +
			"--check waits until a push arrives by webhook and is published, or reports at once that one was. Pushes of\n" +
			"lockstep hook test do not count. It needs the running service.",
		Example: "  lockstep init\n" +
			"  lockstep init --forge gitea --url https://lockstep.example.org --service systemd\n" +
			"  lockstep init --forge github --app docs --notify-url https://docs.example.com/hooks/lockstep --yes\n" +
			"  lockstep init --check --timeout 5m",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if check {
				return checkFirstPush(cmd, std, timeout)
			}
			if err := s.complete(cmd, std, yes); err != nil {
				return term.UsageError(err)
			}
			files, err := s.files()
			if err != nil {
				return term.UsageError(err)
			}
			if err := writeFiles(std.Stdout, s.dir, files); err != nil {
				return err
			}
			s.printNext(std.Stdout)
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&s.dir, "dir", ".", "`folder` to write to")
	flags.StringVar(&s.redis, "redis", "redis://127.0.0.1:6379", "`URL` of Redis, without a password")
	flags.StringVar(&s.listen, "listen", "127.0.0.1:8080", "`address` for HTTP: webhooks, API, dashboard")
	flags.StringVar(&s.forge, "forge", noForge, "`kind` of forge that sends webhooks: github, gitlab, gitea, forgejo, bitbucket-cloud, bitbucket-dc, azure, standard, or none")
	flags.StringVar(&s.url, "url", "", "`URL` at which the forge reaches this service (default: http and the address)")
	flags.StringVar(&s.app, "app", "docs", "`app` to notify, for --notify-url")
	flags.StringVar(&s.notifyURL, "notify-url", "", "`URL` of an app that gets notifications (default: none)")
	flags.StringVar(&s.service, "service", serviceNone, "`file` that runs the service: compose, systemd or none")
	flags.StringVar(&s.image, "image", "lockstep:local", "`image` in the Compose file")
	flags.BoolVar(&yes, "yes", false, "do not ask; use defaults for values that no flag sets")
	flags.BoolVar(&check, "check", false, "wait for the first push to arrive and be published")
	flags.DurationVar(&timeout, "timeout", 10*time.Minute, "how long --check waits")
	return cmd
}

// question asks for one flag.
type question struct {
	flag, text string
	value      *string
	check      func(string) error
	when       func() bool // nil: always
}

func (s *setup) questions() []question {
	return []question{
		{"redis", "Redis URL", &s.redis, checkRedisURL, nil},
		{"listen", "Address for HTTP", &s.listen, func(text string) error {
			if text == "" {
				return errors.New("want host:port, as in 127.0.0.1:8080")
			}
			return config.CheckAddress("listen", text)
		}, nil},
		{"forge", "Forge that sends webhooks (github, gitlab, gitea, forgejo, bitbucket-cloud, bitbucket-dc, azure, standard, none)", &s.forge, checkForge, nil},
		{"url", "URL at which the forge reaches this service", &s.url, checkServiceURL, func() bool { return s.forge != noForge }},
		{"notify-url", "URL of an app to notify, empty for none", &s.notifyURL, checkNotifyURL, nil},
		{"app", "Name of that app", &s.app, watch.CheckApp, func() bool { return s.notifyURL != "" }},
		{"service", "File that runs the service (compose, systemd, none)", &s.service, checkService, nil},
	}
}

// complete takes answers from an existing lockstep.yaml, then asks for values that no flag sets if standard input is a terminal, and checks
// the answers.
func (s *setup) complete(cmd *cobra.Command, std term.Streams, yes bool) error {
	if err := s.adopt(cmd); err != nil {
		return err
	}
	if s.url == "" {
		s.url = "http://" + s.listen
	}
	in := term.NewPrompt(std)
	if yes {
		in = nil
	}
	for _, q := range s.questions() {
		if q.when != nil && !q.when() {
			continue
		}
		if in != nil && !cmd.Flags().Changed(q.flag) {
			answer, err := in.Ask(q.text, *q.value, q.check)
			if err != nil {
				return err
			}
			*q.value = answer
			if q.flag == "listen" && !cmd.Flags().Changed("url") {
				s.url = "http://" + s.listen
			}
			continue
		}
		if err := q.check(*q.value); err != nil {
			return fmt.Errorf("--%s: %w", q.flag, err)
		}
	}
	s.url = strings.TrimRight(s.url, "/")
	if exe, err := os.Executable(); err == nil {
		s.binary = exe
	}
	var err error
	s.dir, err = filepath.Abs(s.dir)
	return err
}

// adopt makes the answers of an earlier run the defaults.
func (s *setup) adopt(cmd *cobra.Command) error {
	path := filepath.Join(s.dir, config.DefaultFile)
	text, err := os.ReadFile(path)
	if err != nil { // if it exists, it is read again before anything is written
		return nil
	}
	var before struct{ Redis, Listen string }
	if err := yaml.Unmarshal(text, &before); err != nil {
		return fmt.Errorf("%s: %w; remove the file, or choose another folder with --dir", path, err)
	}
	set := func(flag string, value *string, text string) {
		if text != "" && !cmd.Flags().Changed(flag) {
			*value = text
		}
	}
	set("redis", &s.redis, before.Redis)
	set("listen", &s.listen, before.Listen)
	if found, err := disk.Glob(filepath.Join(s.dir, "hooks"), "*/forge"); err == nil && len(found) == 1 {
		set("forge", &s.forge, filepath.Base(filepath.Dir(found[0])))
	}
	for name, service := range map[string]string{composeFile: serviceCompose, unitFile: serviceSystemd} {
		text, err := os.ReadFile(filepath.Join(s.dir, name))
		if err != nil || !bytes.Contains(text, []byte("ritten by lockstep init")) {
			continue
		}
		set("service", &s.service, service)
		if image := composeImage.FindSubmatch(text); image != nil {
			set("image", &s.image, string(image[1]))
		}
	}
	if found, err := disk.Glob(filepath.Join(s.dir, "credentials"), "*/signingSecret"); err == nil && len(found) == 1 {
		set("app", &s.app, filepath.Base(filepath.Dir(found[0])))
	}
	if urls, err := os.ReadFile(filepath.Join(s.dir, "credentials", s.app, "urls")); err == nil {
		set("notify-url", &s.notifyURL, strings.TrimSpace(string(urls)))
	}
	return nil
}

func checkRedisURL(text string) error {
	if u, err := url.Parse(text); err == nil && u.User != nil {
		if _, has := u.User.Password(); has {
			return errors.New("the URL contains a password, which lockstep.yaml should not have; leave it out and set redis-password-file")
		}
	}
	_, err := redisx.Parse(text, "")
	return err
}

func checkForge(text string) error {
	if text == noForge {
		return nil
	}
	if _, err := forge.ParseKind(text); err != nil {
		return fmt.Errorf("%w, or none", err)
	}
	return nil
}

func checkServiceURL(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return errors.New("want a URL such as https://lockstep.example.org")
	}
	return nil
}

func checkNotifyURL(text string) error {
	if text == "" {
		return nil
	}
	if checkServiceURL(text) != nil || strings.ContainsAny(text, " \n") || credential.Covers([]string{text}, text) == 0 {
		return errors.New("want a URL such as https://docs.example.com/hooks/lockstep")
	}
	return nil
}

func checkService(text string) error {
	switch text {
	case serviceCompose, serviceSystemd, serviceNone:
		return nil
	}
	return fmt.Errorf("%q: want compose, systemd or none", text)
}

var composeImage = regexp.MustCompile(`(?m)^  lockstep:\n    image: '(.*)'$`)

// printNext prints the webhook's form and what to do next.
func (s *setup) printNext(w io.Writer) {
	if s.forge != noForge {
		printWebhook(w, forge.Kind(s.forge), s.url+"/hooks/"+s.forge, filepath.Join("hooks", s.forge, "secret"))
	}
	fmt.Fprint(w, "\nNext:\n")
	run := "lockstep"
	if _, err := exec.LookPath(run); err != nil {
		run = s.binary
	}
	folder := "  cd " + quoted(s.dir) + "\n"
	fmt.Fprint(w, folder)
	switch s.service {
	case serviceCompose:
		run = "docker compose exec lockstep /lockstep"
		fmt.Fprint(w, "  docker compose up --detach\n")
	case serviceSystemd:
		fmt.Fprintf(w, "  sudo cp %s /etc/systemd/system/ && sudo systemctl enable --now lockstep\n", unitFile)
	default:
		fmt.Fprintf(w, "  %s serve\n\nIn a second terminal:\n%s", run, folder)
	}
	add := run + " watch add URL --app " + s.app
	if s.notifyURL != "" {
		add += " --notify-url " + s.notifyURL + " --notify-secret " + s.app
	}
	fmt.Fprintf(w, "  %s\n", add)
	if s.forge != noForge {
		fmt.Fprintf(w, "  %s hook test %s\n  %s init --check\n", run, s.forge, run)
	}
}

// quoted quotes a path for a shell.
func quoted(path string) string { return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'" }

// printWebhook prints the forge's form for a webhook.
func printWebhook(w io.Writer, kind forge.Kind, to, secret string) {
	form := forge.FormOf(kind)
	var rows strings.Builder
	fmt.Fprintf(&rows, "  %s\t%s\n", cmp.Or(form.URL, "URL"), to)
	if form.ContentType != "" {
		fmt.Fprintf(&rows, "  Content type\t%s\n", form.ContentType)
	}
	fmt.Fprintf(&rows, "  %s\tthe text in %s\n", form.Secret, secret)
	if form.Events != "" {
		fmt.Fprintf(&rows, "  Events\t%s\n", form.Events)
	}
	fmt.Fprintf(w, "\nWebhook, at %s:\n%s", form.Where, term.Align(rows.String()))
}
