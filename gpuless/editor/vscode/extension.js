// Starts `gpuless lsp` for CUDA and Python files; the server does the rest.
const { workspace } = require("vscode");
const { LanguageClient } = require("vscode-languageclient/node");

let client;

exports.activate = () => {
  const command = workspace.getConfiguration("gpuless").get("command");
  const documentSelector = [{ language: "cuda-cpp" }, { language: "python" }];
  client = new LanguageClient("gpuless", { command, args: ["lsp"] }, { documentSelector });
  return client.start();
};

exports.deactivate = () => client && client.stop();
