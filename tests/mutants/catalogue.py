# ruff: noqa: E501 - one line per mutant
"""Places in which the core is broken on purpose, and the tests that must notice."""

from typing import NamedTuple


class Mutant(NamedTuple):
    """One change of one place.

    Args:
        file: below the repository's root.
        old: a text that occurs once in it.
        new: what stands there instead.
        tests: files or folders of tests that must fail then.
    """

    file: str
    old: str
    new: str
    tests: str


F, B, M = "tm_bandit/functional", "tm_bandit/bounds", "tm_bandit/metrics"
S, P = "tm_bandit/selection", "tm_bandit/policies"

MUTANTS = [
    # The Frechet distance and the moments it is made of.
    Mutant(f"{F}/frechet.py", "trace1 + trace2 - 2.0 * cross", "trace1 + trace2 - cross", "tests/functional/test_frechet.py"),
    Mutant(f"{F}/frechet.py", "(mean_gap_squared + trace1", "(trace1", "tests/functional/test_frechet.py"),
    Mutant(f"{F}/frechet.py", "sqrt_trace(root.T @ symmetrised(sigma1) @ root)", "sqrt_trace(symmetrised(sigma1))", "tests/functional/test_frechet.py"),
    Mutant(f"{F}/frechet.py", "(mu1 - mu2).square()", "(mu1 + mu2).square()", "tests/functional/test_frechet.py"),
    Mutant(f"{F}/frechet.py", "gram - means - means.unsqueeze(1) + means.mean()", "gram - means - means.unsqueeze(1)", "tests/functional/test_frechet.py tests/metrics/test_sample_spectrum.py"),
    Mutant(f"{F}/moments.py", "centred = values - mean\n", "centred = values\n", "tests/functional/test_moments.py"),
    Mutant(f"{F}/moments.py", "delta * (merged.count * other.count / count))", "delta)", "tests/functional/test_moments.py"),
    Mutant(f"{F}/moments.py", "merged.mean + delta * (other.count / count)", "merged.mean + delta * (merged.count / count)", "tests/functional/test_moments.py"),
    Mutant(f"{F}/moments.py", "(moments.count * batch / count) ** 0.5", "(moments.count * batch / count)", "tests/functional/test_moments.py"),
    Mutant(f"{F}/moments.py", "moments.mean + delta * (batch / count)", "moments.mean + delta * (batch / moments.count)", "tests/functional/test_moments.py"),
    Mutant(f"{F}/moments.py", "moments.count - int(unbiased)", "moments.count", "tests/functional/test_moments.py"),
    # Confidence sequences.
    Mutant(f"{F}/confidence.py", "math.log1p(math.sqrt(scaled) / (2 * alpha))", "math.log1p(math.sqrt(scaled) / alpha)", "tests/functional/test_confidence.py"),
    Mutant(f"{F}/confidence.py", "scaled = count * rho2 + 1", "scaled = count * rho2", "tests/functional/test_confidence.py"),
    Mutant(f"{F}/confidence.py", "0.72 * math.log(5.2 / alpha)", "0.72 * math.log(5.2)", "tests/functional/test_confidence.py"),
    Mutant(f"{F}/confidence.py", "return 1.7 * math.sqrt(", "return math.sqrt(", "tests/functional/test_confidence.py"),
    Mutant(f"{F}/confidence.py", "width * (1 + 3 / count)", "width", "tests/functional/test_confidence.py"),
    Mutant(f"{F}/confidence.py", "self.std / math.sqrt(self.count)", "self.std / self.count", "tests/functional/test_confidence.py"),
    Mutant(f"{F}/confidence.py", "/ max(count - 1, 1)", "/ max(count, 1)", "tests/functional/test_confidence.py"),
    # Witnesses.
    Mutant(f"{F}/witness_fd.py", "(sums.second - n * mean.square()) / (n - 1)", "(sums.second - n * mean.square()) / n", "tests/functional/test_witness_fd.py tests/metrics/test_frechet_stream.py tests/metrics/test_golden.py"),
    Mutant(f"{F}/witness_fd.py", "map_diagonal = (floored / fitted).sqrt()", "map_diagonal = floored / fitted", "tests/functional/test_witness_fd.py tests/metrics/test_frechet_stream.py"),
    Mutant(f"{F}/witness_fd.py", "FrechetSums(*(a + b for", "FrechetSums(*(a for", "tests/functional/test_witness_fd.py tests/metrics/test_frechet_stream.py"),
    Mutant(f"{F}/crossfit.py", "others = 1 - torch.eye(", "others = torch.ones_like(torch.eye(1)) + 0 * torch.eye(", "tests/functional/test_crossfit.py tests/metrics/test_frechet_stream.py"),
    Mutant(f"{F}/crossfit.py", "return schedule[: bisect_right(schedule, count)]", "return schedule[: bisect_right(schedule, count) - 1]", "tests/functional/test_crossfit.py tests/metrics/test_frechet_stream.py"),
    Mutant(f"{F}/witness_is.py", "return -entropy - (probs @ marginal.log()", "return entropy - (probs @ marginal.log()", "tests/functional/test_witness_is.py"),
    Mutant(f"{F}/witness_is.py", "return _pick((total - fold_prob).clamp_min(0), number - fold_num", "return _pick(total.expand_as(fold_prob), number - fold_num", "tests/functional/test_witness_is.py tests/metrics/test_marginal_stream.py"),
    Mutant(f"{F}/witness_is.py", "scatter = second - count * mean * mean", "scatter = second - mean * mean", "tests/functional/test_witness_is.py tests/metrics/test_marginal_stream.py"),
    # Bias and what is left of it.
    Mutant(f"{F}/debias.py", "freedom = count - 1\n", "freedom = count\n", "tests/functional/test_debias.py"),
    Mutant(f"{F}/debias.py", "return 2 / math.pi * math.sqrt(", "return math.sqrt(", "tests/functional/test_debias.py"),
    Mutant(f"{F}/debias.py", "return max(0.0, 2 * (float(", "return max(0.0, (float(", "tests/functional/test_debias.py"),
    Mutant(f"{F}/debias.py", "math.sqrt(2.25 * float(", "math.sqrt(float(", "tests/functional/test_debias.py"),
    # The Inception Score.
    Mutant(f"{F}/inception_score.py", "(entropy(sums.prob / sums.num) - sums.entropy / sums.num)", "(entropy(sums.prob / sums.num) + sums.entropy / sums.num)", "tests/functional/test_inception_score.py"),
    Mutant(f"{F}/inception_score.py", "(total_square - total.square() / count)", "(total_square - total.square())", "tests/functional/test_inception_score.py"),
    Mutant(f"{F}/inception_score.py", "count - 1.0 if unbiased", "count if unbiased", "tests/functional/test_inception_score.py"),
    # Kernels, bets and the noise of the reference.
    Mutant(f"{F}/kernels.py", "kernel(new, new).fill_diagonal_(0.0)", "kernel(new, new)", "tests/functional/test_kernels.py"),
    Mutant(f"{F}/kernels.py", "2 * (near - similarity) + (reference - near.mean())", "(near - similarity) + (reference - near.mean())", "tests/functional/test_kernels.py"),
    Mutant(f"{F}/kernels.py", "- mean**2 - 2 * spread / (count - 1)", "- mean**2", "tests/functional/test_kernels.py"),
    Mutant(f"{F}/betting.py", "0.25), spreads[..., :-1]]", "0.25), spreads[..., 1:]]", "tests/functional/test_betting.py"),
    Mutant(f"{F}/betting.py", ">= goal", ">= goal / 2", "tests/functional/test_betting.py"),
    Mutant(f"{F}/reference_noise.py", "bias * math.exp(dim / (2 * count))", "bias", "tests/functional/test_reference_noise.py"),
    Mutant(f"{F}/reference_noise.py", "max(end - self.excess, 0.0)", "max(end, 0.0)", "tests/functional/test_reference_noise.py"),
    # The reproduced bounds.
    Mutant(f"{B}/fd_bounds.py", "return 4.0 * norms.effective_rank + math.log(3.0 / delta)", "return norms.effective_rank + math.log(3.0 / delta)", "tests/bounds/test_fd_bounds.py"),
    Mutant(f"{B}/fd_bounds.py", "+ 8.0 * norms.spectral * log_term / num_samples", "", "tests/bounds/test_fd_bounds.py"),
    Mutant(f"{B}/fd_bounds.py", "return 20.0 * kappa**2", "return 20.0 * kappa", "tests/bounds/test_fd_bounds.py"),
    Mutant(f"{B}/fd_bounds.py", "math.sqrt(2.0 * math.log(sigma.shape[0]) / num_samples)", "math.sqrt(math.log(sigma.shape[0]) / num_samples)", "tests/bounds/test_fd_bounds.py"),
    Mutant(f"{B}/fd_bounds.py", "return plug_in - bonus, plug_in + bonus", "return plug_in + bonus, plug_in - bonus", "tests/bounds tests/metrics/test_fid.py"),
    Mutant(f"{B}/is_bounds.py", "7.0 * width * log_term / (3.0 * (count - 1.0))", "7.0 * width * log_term / (3.0 * count)", "tests/bounds/test_is_bounds.py"),
    Mutant(f"{B}/is_bounds.py", "marginal + torch.sign(distance) * radius", "marginal - torch.sign(distance) * radius", "tests/bounds/test_is_bounds.py"),
    Mutant(f"{B}/is_bounds.py", "- sums.entropy / sums.num + entropy_radius", "- sums.entropy / sums.num - entropy_radius", "tests/bounds/test_is_bounds.py"),
    # Comparing arms.
    Mutant("tm_bandit/comparison.py", "2.0 * math.log(1.0 / delta)", "math.log(1.0 / delta)", "tests/test_comparison.py"),
    Mutant("tm_bandit/comparison.py", "float(difference.var()) / scores.shape[1]", "float(difference.var())", "tests/test_comparison.py"),
    Mutant("tm_bandit/comparison.py", "(len(refits) - 1) * float(refits.var(correction=0))", "float(refits.var(correction=0))", "tests/test_comparison.py"),
    Mutant("tm_bandit/comparison.py", "centred = scores - scores.mean(1, keepdim=True)", "centred = scores", "tests/test_comparison.py"),
    Mutant("tm_bandit/comparison.py", "found.stderr * steep", "found.stderr", "tests/test_comparison.py"),
    Mutant(f"{P}/board.py", "max(pair.correlation, 0.0)", "abs(pair.correlation)", "tests/policies/test_board.py"),
    Mutant(f"{P}/board.py", "share * pair.difference + (1.0 - share) * by_debiased", "pair.difference", "tests/policies/test_board.py"),
    Mutant(f"{P}/board.py", "2.0 * share * first.debiased_stderr", "0.0 * share * first.debiased_stderr", "tests/policies/test_board.py"),
    Mutant(f"{P}/board.py", "compare(one[n], two[n], self.pair(a, b, n)", "compare(self[a], self[b], self.pair(a, b, n)", "tests/policies/test_board.py"),
    Mutant(f"{P}/board.py", "for n in reversed(one) if", "for n in one if", "tests/policies/test_board.py"),
    Mutant(f"{S}/pairs.py", "turned._replace(difference=-turned.difference)", "turned", "tests/selection/test_pairs.py"),
    Mutant(f"{F}/paired.py", "torch.stack(part).mean(0)", "torch.stack(part).sum(0)", "tests/functional/test_paired.py"),
    Mutant(f"{P}/board.py", "known = first.num_samples == second.num_samples > 0 and", "known =", "tests/policies/test_board.py tests/selection/test_verdict.py"),
    Mutant(f"{P}/board.py", "fit_margin(n) * pair.fit_stderr", "0.0 * pair.fit_stderr", "tests/policies/test_board.py"),
    Mutant("tm_bandit/comparison.py", "(1.0 + _FIT_SAMPLES / n)", "(1.0 + n / _FIT_SAMPLES)", "tests/test_comparison.py"),
    Mutant(f"{P}/board.py", "min(lower, by_debiased - margin * noise)", "lower", "tests/policies/test_board.py"),
    Mutant("tm_bandit/metrics/frechet_debias.py", "_jackknife(self.left_out - other.left_out)", "_jackknife(self.left_out)", "tests/metrics/test_frechet_debias.py"),
    Mutant(f"{P}/board.py", "min(difference - width, *held)", "difference - width", "tests/policies/test_board.py"),
    Mutant(f"{P}/ucb.py", "arm.witness - z * arm.stderr", "arm.witness + z * arm.stderr", "tests/policies/test_ucb.py"),
    Mutant(f"{P}/board.py", "return arm.num_samples + self.pending.get(arm.name, 0)", "return arm.num_samples", "tests/policies/test_ucb.py tests/selection/test_ask_tell.py"),
    Mutant(f"{P}/ucb.py", "            n = board.promised(arm)", "            n = arm.num_samples", "tests/policies/test_ucb.py"),
    Mutant(f"{P}/ucb.py", "chosen = optimistic, arm if promised <= most else leader", "chosen = optimistic, arm", "tests/policies/test_ucb.py"),
    Mutant(f"{P}/best_arm.py", "lambda arm: arm.optimistic - arm.pessimistic", "lambda arm: arm.pessimistic - arm.optimistic", "tests/policies/test_best_arm.py"),
    Mutant(f"{P}/best_arm.py", "max(1, min(sizes[-1] - 1,", "max(1, min(sizes[-1],", "tests/policies/test_best_arm.py"),
    # Verdicts and stopping.
    Mutant(f"{P}/board.py", "self[a].optimistic - self[b].pessimistic", "self[a].optimistic - self[b].optimistic", "tests/selection/test_verdict.py tests/policies/test_board.py"),
    Mutant(f"{S}/verdict.py", "if duel.lower > -epsilon and", "if duel.upper > -epsilon and", "tests/selection/test_verdict.py"),
    Mutant(f"{S}/verdict.py", "return len(counts) * max(", "return max(", "tests/selection/test_verdict.py"),
    Mutant(f"{S}/stopping.py", "2.0 * best.debiased_stderr", "0.0 * best.debiased_stderr", "tests/selection/test_stopping.py"),
    Mutant(f"{S}/setup.py", "metric.delta / (initial + 1)", "metric.delta", "tests/selection tm_bandit/selection/setup.py"),
    Mutant(f"{S}/verdict.py", "and {name, best} <= settled}", "}", "tests/selection/test_verdict.py"),
    Mutant(f"{S}/verdict.py", "duel.difference - _SEEMS * duel.stderr", "duel.difference - 2 * _SEEMS * duel.stderr", "tests/selection/test_verdict.py"),
    # The books of a run.
    Mutant(f"{S}/selector.py", "spent + pending + self.batch_size > self.budget:", "spent + self.batch_size > self.budget:", "tests/selection/test_ask_tell.py"),
    Mutant(f"{S}/arm.py", "if self._under_way and min(self._under_way) < draw:", "if False:", "tests/selection/test_ask_tell.py tests/selection/test_arm.py"),
    Mutant(f"{S}/arm.py", "pulls, count = before.pulls + 1,", "pulls, count = before.pulls,", "tests/selection/test_arm.py"),
    Mutant(f"{S}/arm.py", "if name != \"identity\"}", "}", "tests/selection/test_state.py"),
    Mutant(f"{S}/state.py", "vars(selector).update(before)", "pass", "tests/selection/test_state.py"),
    Mutant("tm_bandit/execution/draw.py", "return stable_seed(seed, chunk) if chunk else seed", "return seed", "tests/execution tests/callbacks/test_ddp.py"),
    # Metrics, files and folders.
    Mutant(f"{M}/base.py", "copy.sync_on_compute = copy._to_sync = False", "pass", "tests/metrics/test_base.py"),
    Mutant(f"{M}/base.py", "return -loss if self.higher_is_better else loss", "return loss", "tests/metrics/test_base.py tests/selection"),
    Mutant(f"{M}/row_log.py", "                self._update_count = count\n", "                pass\n", "tests/metrics/test_base.py tests/fuzz/test_metrics.py"),
    Mutant(f"{M}/referenced_metric.py", "usable = rows.detach().isfinite() & ", "usable = ", "tests/metrics/test_fid_input.py"),
    Mutant(f"{M}/fid.py", "log.append(rows[done:stop].to(device).clone())", "log.append(rows[done:stop].to(device))", "tests/metrics/test_fid.py tests/metrics/test_fid_contract.py"),
    Mutant("tm_bandit/_files.py", "            os.fsync(file.fileno())", "            pass", "tests/test_files.py"),
    Mutant("tm_bandit/_files.py", "        temporary.unlink(missing_ok=True)", "        pass", "tests/test_files.py"),
    Mutant("tm_bandit/_npz.py", "> member.file_size", "> 10**30", "tests/test_npz.py"),
    Mutant("tm_bandit/report/encoding.py", "None if math.isnan(value) else str(value)", "str(value)", "tests/report"),
    Mutant("tm_bandit/data/images.py", "width * height > most", "width > most", "tests/attacks/test_nobody_let_in.py"),
    Mutant("tm_bandit/data/images.py", "Image.open(path, formats=_kinds()) as image:\n            _check_pixels(image, max_pixels)\n            pixels", "Image.open(path) as image:\n            _check_pixels(image, max_pixels)\n            pixels", "tests/attacks/test_nobody_let_in.py"),
    Mutant("callbacks/_commit.py", "if not (self._written and self.is_safe(summary, books)):", "if False:", "tests/callbacks/test_commit.py"),
    Mutant("callbacks/_books.py", "if validation not in needed and before not in needed:", "if validation not in needed:", "tests/callbacks/test_books.py"),
    Mutant("callbacks/_books.py", "count < STRIKES or name in known", "count < STRIKES", "tests/callbacks/test_books.py"),
    Mutant("callbacks/_folder.py", "if path.is_symlink() or path.is_dir():", "if path.is_dir():", "tests/callbacks/test_folder.py"),
    Mutant("callbacks/_folder.py", "if owner(folder) not in (None, run):", "if False:", "tests/callbacks/test_folder.py"),
    # What strangers bring.
    Mutant("tm_bandit/extractors/weights.py", "        state = read_script(path)\n", "        state = dict(torch.jit.load(str(path), map_location=\"cpu\").state_dict())\n", "tests/attacks/test_nobody_let_in.py"),
    Mutant("tm_bandit/cli/specs.py", "sys.path.append(os.getcwd())", "sys.path.insert(0, os.getcwd())", "tests/attacks/test_nobody_let_in.py"),
    Mutant("tm_bandit/_files.py", "temporary.chmod(stat.S_IMODE(target.stat().st_mode))", "pass", "tests/attacks/test_nobody_let_in.py"),
    Mutant("tm_bandit/_files.py", "Path(os.path.realpath(path)) if os.path.islink(path) else Path(path)", "Path(path)", "tests/attacks/test_nobody_let_in.py"),
    Mutant("tm_bandit/_npz.py", "max(_HARMLESS, _GROWTH * member.compress_size)", "10**30", "tests/attacks/test_nobody_let_in.py"),
    Mutant("tm_bandit/_weights_file.py", "    if member.compress_type != zipfile.ZIP_STORED:\n", "    if False:\n", "tests/attacks/test_nobody_let_in.py"),
    Mutant("tm_bandit/_device.py", "value.is_meta or value.is_nested or value.is_quantized", "value.is_meta", "tests/attacks/test_bad_input.py"),
    Mutant("tm_bandit/reference.py", "        if tensor.is_complex():\n", "        if False:\n", "tests/attacks/test_bad_input.py"),
    Mutant("tm_bandit/reference.py", "values = values.astype(np.float64)  # torch takes", "pass  # torch takes", "tests/attacks/test_bad_input.py"),
    Mutant("tm_bandit/selection/selector.py", "self.budget += check(\"num_samples\", num_samples)", "self.budget += num_samples", "tests/attacks/test_bad_input.py"),
    Mutant("tm_bandit/_arguments.py", "in (\"Cc\", \"Cs\")", "in ()", "tests/attacks/test_bad_input.py"),
    Mutant("tm_bandit/report/result.py", ", *([] if self.best is None else [self.best])}", "}", "tests/attacks/test_bad_input.py"),
    Mutant("tm_bandit/_weights_file.py", "    if os.path.exists(path) and not os.path.isfile(path):", "    if False:", "tests/attacks/test_bad_input.py"),
    Mutant("callbacks/bandit_checkpoint.py", "None if dirpath is None else os.path.expanduser(dirpath)", "dirpath", "tests/attacks/test_peers.py"),
    Mutant("callbacks/_reference.py", "tree_unflatten(batches, combined._spec)", "batches[0]", "tests/attacks/test_peers.py"),
    Mutant("tm_bandit/metrics/row_log.py", "        return self._output_dtype\n", "        return self._dtype\n", "tests/attacks/test_peers.py"),
    Mutant(f"{P}/ucb.py", "n = min(promised, most)", "n = max(promised, most)", "tests/policies/test_ucb.py"),
    Mutant(f"{F}/paired.py", "_SHARE * 2.0 * (count - 1)", "_SHARE * 2.0 * count / 2", "tests/functional/test_paired.py"),
    Mutant(f"{F}/paired.py", "if count < _SEEN_FROM:", "if count > _SEEN_FROM:", "tests/functional/test_paired.py"),
    Mutant(f"{F}/paired.py", "float(without.mean()) / math.sqrt(count - 1)", "float(without.mean()) / math.sqrt(count)", "tests/functional/test_paired.py"),
    Mutant(f"{M}/fid.py", "plug_in(unbiased=False) - safe_bias(", "plug_in(unbiased=False) - 0 * safe_bias(", "tests/metrics/test_fid.py"),
    Mutant("callbacks/_store.py", "            os.fsync(stream.fileno())", "            pass", "tests/callbacks/test_store.py"),
    Mutant(f"{M}/row_log.py", "if not self._to_sync or self._is_synced:", "if True:", "tests/metrics/test_fid_ddp.py tests/metrics/test_inception_ddp.py"),
    Mutant("tm_bandit/_weights_file.py", "class _TensorUnpickler(pickle._Unpickler):", "class _TensorUnpickler(pickle.Unpickler):", "tests/attacks/test_nobody_let_in.py"),
    Mutant("tm_bandit/_weights_file.py", "    held = os.path.getsize(path)\n", "    held = 10**30\n", "tests/attacks/test_nobody_let_in.py"),
    Mutant("tm_bandit/selection/verdict.py", "if duel.n >= FEWEST_EVEN", "if duel.n >= 0", "tests/policies/test_race.py"),
    Mutant("tm_bandit/selection/verdict.py", "_still_out(beaten, there) for beaten in (self.likely_out", "dict(beaten) for beaten in (self.likely_out", "tests/selection/test_verdict.py"),
]  # fmt: skip
