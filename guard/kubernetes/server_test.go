package kubernetes

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// startServer starts an etcd and the kube-apiserver that go.mod names, and returns a client that may do everything.
func startServer(ctx context.Context, t *testing.T) dynamic.Interface {
	t.Helper()
	if _, err := exec.LookPath("etcd"); err != nil {
		t.Skip("etcd is not installed (Debian: etcd-server)")
	}
	// Builds it if need be: some ten minutes, once.
	tool, err := exec.CommandContext(ctx, "go", "tool", "-n", "kube-apiserver").Output()
	if err != nil {
		t.Fatalf("kube-apiserver: %v", err)
	}
	dir := t.TempDir()
	etcd, peer, secure := freeAddress(t), freeAddress(t), freeAddress(t)
	start(t, dir, "etcd", "--data-dir", filepath.Join(dir, "etcd"), "--unsafe-no-fsync",
		"--listen-client-urls", "http://"+etcd, "--advertise-client-urls", "http://"+etcd,
		"--listen-peer-urls", "http://"+peer, "--initial-advertise-peer-urls", "http://"+peer,
		"--initial-cluster", "default=http://"+peer)

	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	block := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	keyFile, usersFile := filepath.Join(dir, "accounts.key"), filepath.Join(dir, "users.csv")
	for file, text := range map[string]string{keyFile: string(block), usersFile: "secret,tester,1,system:masters\n"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, port, _ := net.SplitHostPort(secure)
	exited := start(t, dir, strings.TrimSpace(string(tool)), "--etcd-servers", "http://"+etcd,
		"--bind-address", "127.0.0.1", "--secure-port", port, "--cert-dir", filepath.Join(dir, "certificates"),
		"--service-account-issuer", "https://tests", "--service-account-key-file", keyFile,
		"--service-account-signing-key-file", keyFile, "--service-cluster-ip-range", "10.0.0.0/24",
		"--endpoint-reconciler-type", "none", "--authorization-mode", "RBAC", "--token-auth-file", usersFile)
	config := &rest.Config{
		Host: "https://" + secure, BearerToken: "secret", TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: -1,
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	ready, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	ready.Timeout = 10 * time.Second
	until(ctx, t, "kube-apiserver is ready", func() error {
		select {
		case <-exited:
			t.Fatal("kube-apiserver has ended")
		default:
		}
		answer, err := ready.Get(config.Host + "/readyz")
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if answer.StatusCode != 200 {
			return fmt.Errorf("/readyz: %s", answer.Status)
		}
		return nil
	})
	return client
}

// start starts a program that ends with the test, and shows the end of its log if the test fails. The channel is closed when it ends.
func start(t *testing.T, dir, program string, arguments ...string) <-chan struct{} {
	t.Helper()
	path := filepath.Join(dir, filepath.Base(program)+".log")
	log, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command(program, arguments...)
	command.Dir, command.Stdout, command.Stderr = dir, log, log
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() {
		_ = command.Wait()
		close(exited)
	}()
	t.Cleanup(func() {
		_ = command.Process.Kill()
		<-exited
		if text, _ := os.ReadFile(path); t.Failed() {
			t.Logf("the end of the log of %s:\n%s", program, text[max(0, len(text)-4000):])
		}
	})
	return exited
}

func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// until tries again until the try succeeds, or the time of the test is over.
func until(ctx context.Context, t *testing.T, what string, try func() error) {
	t.Helper()
	for {
		err := try()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("not yet: %s: %v", what, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
